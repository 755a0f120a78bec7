"""Tests of the examples: real processes, loopback, and what users would see."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FunctionType
from typing import Any

import anyio
import h11  # noqa: F401 - else httpx imports it in the loop
import httpcore  # noqa: F401
import httpx
import numpy as np
import pytest
from numpy.random import default_rng
from prometheus_client.parser import text_string_to_metric_families

import autotune
import load_test
from batching import Batcher, BatchFailed, Overloaded
from kernels_async import Kernels, Manifest, ManifestKernel, Specialization
from softmax import GENERIC, SOFTMAX, Array, special
from tests.processes import ROOT, output
from tests.soak.workload import ENDLESS

EXAMPLES = ROOT / "examples"


class Server:
    """The example's server in a process of its own, on loopback.

    Attributes:
        client: A client of it.
        process: The process.
        port: Where it listens.
        log: What it has printed, once it has ended.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.log = ""
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=30,
            verify=False,  # noqa: S501 - making a TLS context would hold the loop
        )

    async def is_served(self, path: str) -> None:
        """Wait until it answers there with 200."""
        async with asyncio.timeout(30):
            while self.process.returncode is None:
                with contextlib.suppress(httpx.ConnectError):
                    if (await self.client.get(path)).status_code == 200:
                        break
                await asyncio.sleep(0.02)

    async def ask(self, rows: Array) -> httpx.Response:
        """Ask for the softmax of `rows`."""
        return await self.client.post("/softmax", json={"rows": rows.tolist()})

    async def right(self, rows: Array) -> tuple[str, int]:
        """Ask, and check the result; which kernel served, and how many it served."""
        answer = await self.ask(rows)
        powers = np.exp(rows - rows.max(1, keepdims=True))
        expected = powers / powers.sum(1, keepdims=True)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert np.abs(np.array(told["rows"]) - expected).max() < 1e-5
        return told["served"], told["batch"]

    async def end(self) -> None:
        """Ask it to end, and see that it does, well and without a word of complaint."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            out, err = await self.process.communicate()
        self.log = out.decode()
        assert (self.process.returncode, err.decode()) == (0, "")


@contextlib.asynccontextmanager
async def serve(environment: dict[str, str], *arguments: str) -> AsyncIterator[Server]:
    """A server that is alive, and ends well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-Werror", str(EXAMPLES / "server.py"), "--device", "cpu"),
        *("--port", str(port), *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    server = Server(process, port)
    try:
        async with server.client:
            await server.is_served("/health")
            yield server
            if not server.log:
                await server.end()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def numbers(columns: int, rows: int = 3) -> Array:
    """Rows of that length."""
    return default_rng(columns).standard_normal((rows, columns), np.float32)


async def test_the_server_answers_while_other_kernels_compile(
    child_environment: dict[str, str],
) -> None:
    """It is alive before it is ready, and serves every new row length meanwhile."""
    async with serve(child_environment, "--no-manifest") as server:
        answer = await server.client.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["ready"] is False
        lengths = (1, 7, 7, 7, 7, 1000)
        asking = asyncio.gather(*(server.right(numbers(columns)) for columns in lengths))
        answered = 0
        while not asking.done():
            answered += (await server.client.get("/health")).json()["loaded"] == 0
        served = await asking
        assert {kernel for kernel, _ in served} <= {"fallback", "special"}
        assert max(batch for _, batch in served) >= 2
        assert answered > 5
        await server.is_served("/ready")
        async with asyncio.timeout(30):
            while (await server.right(numbers(7)))[0] != "special":
                await asyncio.sleep(0.02)


BODIES = {
    "nothing": "",
    "no rows": "{}",
    "a number": '{"rows": 1}',
    "an empty row": '{"rows": [[]]}',
    "text": '{"rows": ["x"]}',
    "not a number": '{"rows": [[1, NaN]]}',
    "ragged rows": '{"rows": [[1], [1, 2]]}',
    "a huge integer": '{"rows": [[1' + "0" * 400 + "]]}",
    "too large for a float": '{"rows": [[1e39]]}',
    "nested too deep": '{"rows": ' + "[" * 100_000 + "}",
    "too long a row": json.dumps({"rows": [[0] * 1025]}),
    "too many rows": json.dumps({"rows": [[0]] * 1025}),
    "too many bytes": '{"rows": [[0' + " " * 300_000 + "]]}",
    "no text": "\xff",
}


async def test_the_server_refuses_what_it_cannot_answer(
    child_environment: dict[str, str],
) -> None:
    """With a 400, not a crash."""
    async with serve(child_environment) as server:
        for name, body in BODIES.items():
            sent = body.encode("latin-1")
            answer = await server.client.post("/softmax", content=sent)
            assert (name, answer.status_code) == (name, 400)
        told = (await server.client.get("/metrics")).text
        counts = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(told)
            for sample in family.samples
        }
        assert counts["softmax_answers_total", "400"] == len(BODIES)
        assert counts["kernels_async_requests_total", "cpu", "miss", "cpu"] >= 1


async def test_an_overloaded_server_says_when_to_come_again(
    child_environment: dict[str, str],
) -> None:
    """What it took is answered, and who left meanwhile harms nobody."""
    async with serve(child_environment, "--no-manifest") as server:
        body = json.dumps({"rows": [[0]] * 1024}).encode()
        _, leaving = await asyncio.open_connection("127.0.0.1", server.port)
        leaving.write(
            b"POST /softmax HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        leaving.write(body)
        asking = [
            asyncio.create_task(server.ask(np.zeros((1024, 1), np.float32)))
            for _ in range(6)
        ]
        await leaving.drain()
        leaving.close()
        answers = await asyncio.gather(*asking)
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 2 <= len(refused) <= 3
        for answer in refused:
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "1"
        await server.right(numbers(1, 1024))


async def test_a_terminated_server_answers_what_runs_and_ends_well(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """SIGTERM while it compiles what somebody waits for; a warm-up does not hold it up."""
    path = tmp_path / "kernels.manifest.json"
    await Manifest((ManifestKernel(ENDLESS, Specialization("endless")),)).save(path)
    async with serve(child_environment, "--manifest", str(path)) as server:
        asking = asyncio.create_task(server.right(numbers(5)))
        while "softmax_rows 3.0" not in (await server.client.get("/metrics")).text:
            assert not asking.done()
        await asyncio.gather(asking, server.end())
        assert asking.result()[1] == 1


async def test_a_server_that_starts_from_an_image_compiles_nothing(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """Its manifest is recorded, built by the command, and served frozen; a miss is told."""
    path, image = tmp_path / "kernels.manifest.json", tmp_path / "image"
    recording = ("--no-manifest", "--record", str(path))
    async with serve(child_environment, *recording) as server:
        await server.right(numbers(3))
        async with asyncio.timeout(30):
            while (await server.client.get("/health")).json()["loaded"] < 2:
                await asyncio.sleep(0.02)
    symbols = {kernel.specialization for kernel in (await Manifest.load(path)).kernels}
    assert symbols == {GENERIC, special(3)}

    command = ("build", str(path), "--target", "cpu", "--cache-dir", str(image))
    building = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernels_async", *command),
        env=child_environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await building.wait() == 0

    warm = ("--manifest", str(path), "--cache-dir", str(image), "--frozen")
    async with serve(child_environment, *warm) as server:
        await server.is_served("/ready")
        assert (await server.right(numbers(3)))[0] == "special"
        answer = await server.ask(numbers(41))
        assert answer.status_code == 503
        assert answer.json()["missing"] == "softmax<41>"
        assert "softmax<41>" in answer.json()["error"]
        await server.end()
    assert len(re.findall("softmax<.*: from disk,", server.log)) == 2
    assert "compiled in" not in server.log

    async with serve(child_environment, *warm, "warn") as server:
        await server.is_served("/ready")
        await server.right(numbers(41))


async def test_the_manifest_of_the_server_is_of_its_kernels() -> None:
    """It was not forgotten when they were changed."""
    manifest = await Manifest.load(EXAMPLES / "kernels.manifest.json")
    wanted = {GENERIC, *map(special, load_test.COLUMNS)}
    assert {kernel.source for kernel in manifest.kernels} == {SOFTMAX}
    assert {kernel.specialization for kernel in manifest.kernels} == wanted


async def test_the_load_test_measures_three_starts(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """Without a manifest, with it, and from disk, where no other kernel serves."""
    one = next(
        kernel
        for kernel in (await Manifest.load(EXAMPLES / "kernels.manifest.json")).kernels
        if kernel.specialization == special(16)
    )
    path = tmp_path / "kernels.manifest.json"
    await Manifest((one,)).save(path)
    out = await output(
        child_environment,
        *("-Werror", str(EXAMPLES / "load_test.py"), "--device", "cpu", "--columns", "16"),
        *("--seconds", "0.5", "--rate", "100", "--manifest", str(path)),
    )
    rows = [re.split(r"  +", line) for line in out.splitlines()]

    assert [row[0] for row in rows] == ["start", "no manifest", "manifest", "on disk"]
    assert len({(row[2], row[3]) for row in rows[1:]}) == 1
    assert rows[1][3] == "0"
    assert [row[-1] for row in rows[2:]] == ["0", "0"]


async def doubled(rows: Array) -> tuple[Array, str]:
    """What a batch runs here."""
    await asyncio.sleep(0)
    return rows * 2, "doubled"


async def test_requests_that_come_together_are_one_batch() -> None:
    """Each gets its own rows back; another length is another batch."""
    async with anyio.create_task_group() as tasks:
        batcher = Batcher(tasks, doubled, window=0.2)
        asked = [numbers(4, 1), numbers(4, 3), numbers(5, 2), numbers(4, 2)]
        asking = []
        for rows in asked:
            asking.append(asyncio.create_task(batcher.submit(rows)))
            for _ in range(5):
                await asyncio.sleep(0)
        results = await asyncio.gather(*asking)
    for rows, result in zip(asked, results, strict=True):
        assert np.array_equal(result.rows, rows * 2)
    assert [result.batch for result in results] == [3, 3, 1, 3]
    assert batcher.rows == 0


async def test_a_batch_is_as_large_as_it_may_be() -> None:
    """No request is split; a large one runs alone."""
    async with anyio.create_task_group() as tasks:
        batcher = Batcher(tasks, doubled, most_rows=4)
        asked = [numbers(4, rows) for rows in (2, 2, 3, 9, 1)]
        results = await asyncio.gather(*map(batcher.submit, asked))
    assert [result.batch for result in results] == [2, 2, 1, 1, 1]
    for rows, result in zip(asked, results, strict=True):
        assert np.array_equal(result.rows, rows * 2)


async def test_a_run_that_fails_fails_its_own_batch() -> None:
    """Each of its requests gets an error of its own, and the next batch runs."""

    async def run(rows: Array) -> tuple[Array, str]:
        if rows[0, 0] == 13:
            raise RuntimeError("bad luck")
        return await doubled(rows)

    async with anyio.create_task_group() as tasks:
        batcher = Batcher(tasks, run)
        bad = np.full((1, 4), 13, np.float32)
        failed = await asyncio.gather(
            *(batcher.submit(rows) for rows in (bad, numbers(4), numbers(5))),
            return_exceptions=True,
        )
        first, second, other = failed
        assert isinstance(first, BatchFailed)
        assert isinstance(second, BatchFailed)
        assert first is not second
        assert isinstance(first.__cause__, RuntimeError)
        assert not isinstance(other, BaseException)
        assert (await batcher.submit(numbers(4))).batch == 1


async def test_a_request_whose_client_left_is_left_out() -> None:
    """Whether it waits or runs; the others of its batch get their rows."""
    started, go = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def run(rows: Array) -> tuple[Array, str]:
        ran.append(len(rows))
        started.set()
        await go.wait()
        return await doubled(rows)

    async with anyio.create_task_group() as tasks:
        batcher = Batcher(tasks, run)
        running, kept, waiting, last = (
            asyncio.create_task(batcher.submit(numbers(4, rows))) for rows in (1, 2, 3, 4)
        )
        await asyncio.sleep(0)
        waiting.cancel()
        await started.wait()
        running.cancel()
        await asyncio.sleep(0)
        assert batcher.rows == 6
        go.set()
        assert np.array_equal((await kept).rows, numbers(4, 2) * 2)
        assert np.array_equal((await last).rows, numbers(4, 4) * 2)
    assert ran == [7]
    assert batcher.rows == 0


async def test_what_comes_while_a_batch_runs_is_the_next_one() -> None:
    """And one request too many is refused at once."""
    started, go = asyncio.Event(), asyncio.Event()

    async def run(rows: Array) -> tuple[Array, str]:
        started.set()
        await go.wait()
        return await doubled(rows)

    async with anyio.create_task_group() as tasks:
        batcher = Batcher(tasks, run, most_waiting=4)
        first = asyncio.create_task(batcher.submit(numbers(4, 1)))
        await started.wait()
        second, third = (asyncio.create_task(batcher.submit(numbers(4, 1))) for _ in "12")
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await batcher.submit(numbers(4, 2))
        go.set()
        assert (await first).batch == 1
        assert {(await second).batch, (await third).batch} == {2}


async def test_the_autotuner_keeps_the_fastest_variant_and_finds_it_again(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """It says what it dropped, and the next start compiles nothing."""
    run = (str(EXAMPLES / "autotune.py"), "--device", "cpu", "--size", "40")
    keep = ("--keep", str(tmp_path / "tuned"), "--most", "2")
    out = await output(child_environment, "-Werror", *run, *keep)
    (chosen,) = json.loads((tmp_path / "tuned/choices.json").read_text()).values()
    (kernel,) = (await Manifest.load(tmp_path / "tuned/kernels.manifest.json")).kernels

    assert "2 variants" in out
    assert kernel.specialization.defines["TILE"] == str(chosen["tile"])
    again = await output(child_environment, "-Werror", *run, *keep)
    assert again.startswith("known for cpu 40: ")
    assert again.endswith(", disk\n")


async def test_the_autotuner_drops_what_cannot_be_compiled(
    kernels: Kernels, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are tried; one that is wrong is never the fastest."""
    good, bad = autotune.Variant(32, 32, 4, 1), autotune.Variant(128, 8, 4, 1)
    assert await autotune.tune(kernels, [bad, good], 40) == good
    told = capsys.readouterr().out
    assert f"dropped {bad}: matmul.cu:2" in told
    assert "a block has at most 1024 threads" in told

    bench = autotune.Bench("cpu", 40)
    kernel = await kernels.get(autotune.MATMUL, good.specialization)
    assert bench.seconds(good, kernel) < float("inf")
    bench.expected += 1
    assert bench.seconds(good, kernel) == float("inf")


@pytest.mark.gpu
async def test_the_autotuner_drops_what_spills_on_a_gpu(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """And times the others with events."""
    out = await output(
        child_environment,
        *(str(EXAMPLES / "autotune.py"), "--device", "cuda:0", "--size", "512"),
        *("--keep", str(tmp_path / "tuned")),
    )
    print(out)
    assert "54 variants" in out
    assert out.count("a block has at most 1024 threads") == 6
    assert " spills " in out
    assert "chosen for sm_" in out


async def test_the_notebook_runs_from_top_to_bottom() -> None:
    """With `await` at the top of its cells; no outputs are kept, which would differ."""
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    assert all(cell.get("outputs", []) == [] for cell in cells)
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            code = compile(
                "".join(cell["source"]),
                f"cell {number}",
                "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            )
            running = FunctionType(code, names)()
            if running is not None:
                await running
    assert names["x"].tolist() == [2.0 * i for i in range(8)]
    assert "'missing' was not declared" in str(names["failure"])
    assert names["progress"].loaded == 4
    assert [kernel.state for kernel in names["page"].build.kernels].count("failed") == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
async def test_the_torch_operator_agrees_with_pytorchs_own(
    device: str, child_environment: dict[str, str]
) -> None:
    """Forward and backward; and PyTorch's own checks of operators pass."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    out = await output(child_environment, str(EXAMPLES / "torch_op.py"), "--device", device)
    assert "opcheck and torch.autograd.gradcheck pass" in out
