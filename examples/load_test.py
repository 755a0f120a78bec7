"""A load test of `server.py`: how long answers take, from a cold start and from warm ones.

It starts the server on loopback, three times: without a manifest and with an empty cache,
so that every kernel is compiled under load; with the manifest and an empty cache; and with
the manifest and every kernel on disk, frozen. The load is open: a request is sent when it
is due, however many are under way, and its latency counts from then. So a server that
stands still is seen to::

    python examples/load_test.py --device cpu --rate 200 --seconds 5

With `--record PATH` it runs the first of the three only, and the server writes the
manifest of what it was asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SERVER = Path(__file__).with_name("server.py")
COLUMNS = (16, 50, 64, 100, 128, 200, 256, 384, 500, 512, 768, 1000)
ROWS = 4
MOST_CONNECTIONS = 512
KEPT_SECONDS = 3.0  # uvicorn closes them after five
STARTS_SECONDS = 120


@dataclass(slots=True)
class Measured:
    """What came of the load.

    Attributes:
        ready: Seconds from the server's start to the first request.
        latencies: Seconds from when each request that was answered was due.
        seconds: From the first request to the last answer.
        served: How many requests each kind of kernel answered.
        batches: With how many requests each answer shared a launch.
        errors: How many requests failed, and how.
    """

    ready: float = 0.0
    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    served: Counter[str] = field(default_factory=Counter)
    batches: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Client:
    """Sends requests over connections that it keeps; as many at once as it must."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []
        self._limit = asyncio.Semaphore(MOST_CONNECTIONS)

    async def ask(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and the body of an answer.

        Raises:
            OSError: There is no server, or it left.
            TimeoutError: It took longer than half a minute.
        """
        async with self._limit, asyncio.timeout(30):
            reader, writer = await self._connection()
            try:
                method = "POST" if body else "GET"
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
                writer.write(head.encode() + b"\r\n\r\n" + body)
                status, length = _head(await reader.readuntil(b"\r\n\r\n"))
                answer = await reader.readexactly(length)
            except BaseException as error:
                writer.close()
                if isinstance(error, EOFError):
                    raise ConnectionError("the server left") from error
                raise
            self._free.append((reader, writer, asyncio.get_running_loop().time()))
            return status, answer

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is free, unless the server is about to close it, or a new one."""
        while self._free:
            reader, writer, since = self._free.pop()
            if asyncio.get_running_loop().time() < since + KEPT_SECONDS:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        for _, writer, _ in self._free:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _head(head: bytes) -> tuple[int, int]:
    first, *lines = head.decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines if line)
    return int(first.split()[1]), int(fields["content-length"])


@contextlib.asynccontextmanager
async def serving(path: str, *arguments: str) -> AsyncIterator[Client]:
    """The server in a process of its own, from when it answers at `path` with 200.

    At the end it is terminated.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SERVER), "--port", str(port), *arguments),
        stdout=asyncio.subprocess.DEVNULL,
    )
    client = Client(port)
    try:
        async with asyncio.timeout(STARTS_SECONDS):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    if (await client.ask(path))[0] == 200:
                        break
                await asyncio.sleep(0.02)
        yield client
    finally:
        await client.aclose()
        if process.returncode is None:
            process.terminate()
        if status := await process.wait():
            raise SystemExit(f"the server ended with status {status}")


def bodies(lengths: Sequence[int]) -> list[bytes]:
    """One request for each row length."""
    draw = np.random.default_rng(0)
    rows = [draw.standard_normal((ROWS, columns)).round(3) for columns in lengths]
    return [json.dumps({"rows": one.tolist()}).encode() for one in rows]


async def load(client: Client, options: argparse.Namespace, measured: Measured) -> None:
    """Send requests at random times, `rate` a second on average, and await the answers."""
    loop, draw = asyncio.get_running_loop(), np.random.default_rng(1)
    choices = bodies(options.columns)

    async def request(due: float, body: bytes) -> None:
        try:
            status, answer = await client.ask("/softmax", body)
        except OSError as error:  # a TimeoutError is one
            measured.errors[type(error).__name__] += 1
            return
        if status != 200:
            measured.errors[str(status)] += 1
            return
        measured.latencies.append(loop.time() - due)
        told = json.loads(answer)
        measured.served[told["served"]] += 1
        measured.batches.append(told["batch"])

    began = due = loop.time()
    async with asyncio.TaskGroup() as tasks:
        while (due := due + draw.exponential(1 / options.rate)) < began + options.seconds:
            await asyncio.sleep(due - loop.time())
            tasks.create_task(request(due, choices[draw.integers(len(choices))]))
    measured.seconds = loop.time() - began


async def scenario(options: argparse.Namespace, path: str, *arguments: str) -> Measured:
    """Start a server, wait until it answers at `path` with 200, and load it."""
    if options.device:
        arguments += ("--device", options.device)
    measured, loop = Measured(), asyncio.get_running_loop()
    began = loop.time()
    async with serving(path, *arguments) as client:
        measured.ready = loop.time() - began
        await load(client, options, measured)
    return measured


HEADINGS = (
    *("start", "first after", "sent", "errors", "answers/s", "p50", "p90", "p99", "max"),
    *("a batch", "most", "generic"),
)


def row(name: str, measured: Measured) -> tuple[str, ...]:
    """A row of the table."""
    errors = ", ".join(f"{n} x {kind}" for kind, n in measured.errors.items())
    answers = len(measured.latencies)
    if not answers:
        raise SystemExit(f"no request was answered: {errors}")
    launches = sum(1 / batch for batch in measured.batches)
    times = np.percentile(measured.latencies, (50, 90, 99, 100))
    return (
        name,
        f"{measured.ready:.1f} s",
        str(answers + measured.errors.total()),
        errors or "0",
        f"{answers / measured.seconds:.0f}",
        *(f"{seconds * 1e3:.1f} ms" for seconds in times),
        f"{answers / launches:.2f}",
        str(max(measured.batches)),
        str(measured.served["fallback"]),
    )


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    for cells in (HEADINGS, *rows):
        first, *others = (c.rjust(w) for c, w in zip(cells, widths, strict=True))
        print("  ".join((first.strip().ljust(widths[0]), *others)))


async def main() -> None:
    """Run the scenarios and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", help="'cpu' or such as 'cuda:0'")
    add("--rate", type=float, default=200, help="requests a second")
    add("--seconds", type=float, default=5)
    add("--columns", type=int, nargs="+", default=COLUMNS, help="lengths of rows")
    add("--manifest", type=Path, help="by default that of the server")
    add("--record", type=Path, help="have the server write one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="load-test-") as folder:
        cold: tuple[str, ...] = ("--cache-dir", f"{folder}/1", "--no-manifest")
        warm: tuple[str, ...] = ("--cache-dir", f"{folder}/2")
        if options.record:
            cold += ("--record", str(options.record))
        if options.manifest:
            warm += ("--manifest", str(options.manifest))
        rows = [row("no manifest", await scenario(options, "/health", *cold))]
        if not options.record:
            rows += [
                row("manifest", await scenario(options, "/ready", *warm)),
                row("on disk", await scenario(options, "/ready", *warm, "--frozen")),
            ]
    print_table(rows)


if __name__ == "__main__":
    asyncio.run(main())
