"""An inference server: softmax over JSON, with kernels that it compiles while it serves.

From the first moment it answers `/health`. Meanwhile it builds the kernels of a manifest,
and `/ready` answers 503 until they are loaded. A row length that is not in the manifest is
served by a generic kernel while its own is compiled. Requests of one row length that come
together are one launch. `/metrics` is for Prometheus. SIGTERM ends it: no new connections,
an answer to what runs, exit status 0::

    python examples/server.py --port 8000
    curl -s localhost:8000/softmax -d '{"rows": [[1, 2, 3], [0, 0, 0]]}'

The manifest beside this file was recorded by the server itself, under the load of
`load_test.py`::

    python examples/load_test.py --record examples/kernels.manifest.json

Where servers start from an image, compile it there; then nothing is compiled any more, and
a request that would need it is refused with a 503 that says what is missing::

    kernels-async build examples/kernels.manifest.json --target sm_90 --cache-dir /kernels
    python examples/server.py --cache-dir /kernels --frozen
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import anyio
import numpy as np
import uvicorn
from anyio.abc import TaskGroup
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from batching import Batcher, BatchFailed, Overloaded
from kernels_async import (
    FallbackPending,
    FrozenError,
    Kernels,
    KernelsError,
    LoggingReporter,
    Manifest,
)
from kernels_async.adapters.prometheus import KernelsCollector
from softmax import GENERIC, LONGEST, SOFTMAX, Array, launch, special

Frozen = Literal[True, False, "warn"]
FROZEN: dict[str | None, Frozen] = {None: False, "true": True, "warn": "warn"}

MANIFEST = Path(__file__).with_name("kernels.manifest.json")
MOST_BYTES = 256 << 10  # of one request: to parse more would hold up the others
MOST_ROWS = 1024
GRACE_SECONDS = 5

logger = logging.getLogger("server")


class Service:
    """What serves requests: the kernels, the batches, and the counts of both.

    Args:
        kernels: An open cache.
        tasks: Where batches run.
    """

    def __init__(self, kernels: Kernels, tasks: TaskGroup) -> None:
        self.kernels = kernels
        self.batcher = Batcher(tasks, self._run)
        self.is_ready = False
        self.trouble: str | None = None
        self._by_columns: dict[int, FallbackPending] = {}
        self.registry = CollectorRegistry()
        self.registry.register(KernelsCollector(kernels))
        self.answers = Counter(
            "softmax_answers", "Answers by status.", ["status"], registry=self.registry
        )
        waiting = Gauge("softmax_rows", "Rows that wait or run.", registry=self.registry)
        waiting.set_function(lambda: self.batcher.rows)
        self.batches = Histogram(
            "softmax_batch_requests",
            "Requests that one launch answered.",
            ["served"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )

    async def warm_up(self, manifest: Manifest) -> None:
        """Load the generic kernel and those of the manifest; the server is ready then."""
        try:
            await self.kernels.get(SOFTMAX, GENERIC)
            progress = await self.kernels.warm(manifest)
        except KernelsError as error:
            self.trouble = str(error)
            logger.exception("the server will not be ready")
        else:
            self.is_ready = True
            logger.info("ready: %s", progress)

    def pending(self, columns: int) -> FallbackPending:
        """The kernel for rows of that length, and the generic one until it is there.

        Raises:
            FrozenError: It is in no manifest, and the cache is frozen.
        """
        pending = self._by_columns.get(columns)
        if pending is None:
            pending = self.kernels.request(SOFTMAX, special(columns), fallback=GENERIC)
            self._by_columns[columns] = pending
        return pending

    async def _run(self, rows: Array) -> tuple[Array, str]:
        pending = self.pending(rows.shape[1])
        kernel = await pending
        served = pending.serving or ""
        return await asyncio.to_thread(launch, kernel, rows), served


async def softmax(request: Request) -> Response:
    """Answer with the softmax of each row, and with what computed it."""
    service: Service = request.app.state.service
    response = await _softmax(service, request)
    service.answers.labels(response.status_code).inc()
    return response


async def _softmax(service: Service, request: Request) -> Response:
    try:
        rows = await _rows(request)
    except ClientDisconnect:
        return Response(status_code=400)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 400)
    columns = rows.shape[1]
    try:
        service.pending(columns)
        result = await service.batcher.submit(rows)
    except FrozenError as error:
        missing = special(columns).symbol
        return JSONResponse({"error": str(error), "missing": missing}, 503)
    except Overloaded as error:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
    except (KernelsError, BatchFailed) as error:
        return JSONResponse({"error": str(error)}, 500)
    service.batches.labels(result.served).observe(result.batch)
    return JSONResponse(
        {"rows": result.rows.tolist(), "served": result.served, "batch": result.batch}
    )


async def _rows(request: Request) -> Array:
    """The rows of a request.

    Raises:
        ValueError: There are none that can be served; the text tells the client why.
        ClientDisconnect: The client left before it had sent them.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ValueError(f"send at most {MOST_BYTES} bytes")
    try:
        with np.errstate(over="ignore"):
            rows = np.asarray(json.loads(body)["rows"], np.float32)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ValueError('send {"rows": [[...], ...]}') from None
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError("send rows of finite numbers, all of one length")
    count, columns = rows.shape
    if not (1 <= count <= MOST_ROWS and 1 <= columns <= LONGEST):
        raise ValueError(f"send 1 to {MOST_ROWS} rows of 1 to {LONGEST} numbers")
    return rows


async def health(request: Request) -> Response:
    """Liveness: answers at once, whatever compiles."""
    kernels: Kernels = request.app.state.service.kernels
    return JSONResponse({"kernels": repr(kernels), "loaded": len(kernels)})


async def ready(request: Request) -> Response:
    """Readiness: 503 with how far the warm-up is, until it is through."""
    service: Service = request.app.state.service
    progress = service.kernels.progress()
    told = {
        "ready": service.is_ready,
        "loaded": progress.loaded,
        "failed": progress.failed,
        "total": progress.total,
        "seconds": progress.seconds,
        "seconds_left": progress.seconds_left,
        "error": service.trouble,
    }
    return JSONResponse(told, 200 if service.is_ready else 503)


async def metrics(request: Request) -> Response:
    """The counts, as Prometheus reads them."""
    service: Service = request.app.state.service
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


def make_app(
    device: str | None = None,
    cache_dir: str | None = None,
    manifest: Manifest | None = None,
    frozen: Frozen = False,
    record: Path | None = None,
) -> Starlette:
    """The application; its lifespan holds the cache open, and warms it up meanwhile."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with (
            Kernels.open(device, cache_dir=cache_dir, frozen=frozen) as kernels,
            anyio.create_task_group() as tasks,
        ):
            logger.info("kernels run on %s", kernels.device)
            kernels.reporting(LoggingReporter(logger))
            if record is not None:
                kernels.record(record)
            app.state.service = service = Service(kernels, tasks)
            tasks.start_soon(service.warm_up, manifest or Manifest())
            yield
            tasks.cancel_scope.cancel()  # every request has been answered by now

    routes = [
        Route("/softmax", softmax, methods=["POST"]),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class Server(uvicorn.Server):
    """Says that it serves once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the cache and the port."""
        await super().startup(sockets)
        if self.started:
            at = f"http://{self.config.host}:{self.config.port}"
            print(f"serving {at}, until interrupted", flush=True)


def main() -> None:
    """Serve until interrupted or terminated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--device", help="'cpu' or such as 'cuda:0'")
    add("--cache-dir")
    add("--manifest", type=Path, default=MANIFEST, help="the kernels to warm up with")
    add("--no-manifest", action="store_true", help="begin with none")
    add(
        "--frozen",
        choices=("true", "warn"),
        nargs="?",
        const="true",
        help="once warm, refuse what would have to be compiled, or log it",
    )
    add("--record", type=Path, help="a manifest to add to what is asked for")
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    try:
        manifest = (
            Manifest()
            if options.no_manifest
            else asyncio.run(Manifest.load(options.manifest))
        )
    except (KernelsError, OSError) as error:
        parser.error(str(error))
    app = make_app(
        options.device,
        options.cache_dir,
        manifest,
        FROZEN[options.frozen],
        options.record,
    )
    # uvicorn raises the signal again once it has ended everything
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = Server(
        uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            log_level="warning",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    server.run()
    if not server.started:
        sys.exit(3)


if __name__ == "__main__":
    main()
