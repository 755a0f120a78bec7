"""Tests of the README and the examples: they run as written."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import h11  # noqa: F401 - else httpx imports it in the loop
import httpcore  # noqa: F401
import httpx
import numpy as np
import pytest
from numpy.random import default_rng

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


async def run(environment: dict[str, str], *command: str) -> str:
    """Run a program with warnings as errors; its output, nothing on standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-Werror", *command),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    return out.decode()


PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


async def test_the_readmes_program_runs(child_environment: dict[str, str]) -> None:
    """And prints what it says."""
    out = await run(child_environment, "-c", PROGRAMS[0])

    assert "scale<float> None" in out
    assert "[ 0.  3.  6.  9. 12. 15. 18. 21.]" in out


async def test_the_readmes_demo_of_an_edited_header_runs(
    child_environment: dict[str, str],
) -> None:
    """One kernel is compiled again, and the key says why."""
    lines = (await run(child_environment, "-c", PROGRAMS[1])).splitlines()

    assert lines[:3] == ["k compiled", "other compiled", "k compiled"]
    assert len(lines) == 4
    assert lines[3].startswith("differs in header v.h: blake3 ")


def test_the_readme_names_files_that_exist() -> None:
    """No path in it is dead."""
    names = set(
        re.findall(r"`((?:examples|kernels_async|benchmarks|\.ci)/[\w./]+)`", README)
    )

    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


async def test_the_quickstart_runs_cold_and_warm(
    child_environment: dict[str, str],
) -> None:
    """Every kernel is right, compiled at first and then read from disk."""
    out = await run(child_environment, str(ROOT / "examples" / "quickstart.py"), "cpu")

    assert out.count("every result agrees with NumPy (12 kernels)") == 2
    assert out.count(" compiled ") == 12
    assert out.count(" disk ") == 12
    assert out.count("a memory hit takes") == 2


@contextlib.asynccontextmanager
async def serve(
    cache_dir: Path, environment: dict[str, str]
) -> AsyncIterator[httpx.AsyncClient]:
    """The example's server in a process of its own, on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-Werror", str(ROOT / "examples" / "server.py")),
        *("--port", str(port), "--device", "cpu", "--cache-dir", str(cache_dir)),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        verify=False,  # noqa: S501 - making a TLS context would hold the loop
    ) as client:
        async with asyncio.timeout(30):
            while process.returncode is None:
                with contextlib.suppress(httpx.ConnectError):
                    await client.get("/health")
                    break
                await asyncio.sleep(0.05)
        try:
            yield client
        finally:
            process.terminate()
            _, err = await process.communicate()
    assert err == b""


async def test_the_server_answers_while_other_kernels_compile(
    cache_dir: Path, child_environment: dict[str, str]
) -> None:
    """A request for a new row length compiles; every other one is answered meanwhile."""
    async with serve(cache_dir, child_environment) as client:

        async def ask(columns: int) -> None:
            rows = default_rng(columns).standard_normal((3, columns))
            answer = await client.post("/softmax", json={"rows": rows.tolist()}, timeout=30)
            powers = np.exp(rows - rows.max(1, keepdims=True))
            expected = powers / powers.sum(1, keepdims=True)
            assert answer.status_code == 200
            assert np.abs(np.array(answer.json()["rows"]) - expected).max() < 1e-5

        asking = asyncio.gather(*(ask(columns) for columns in (1, 7, 100, 1000)))
        answered = 0
        while not asking.done():
            health = (await client.get("/health")).json()
            answered += health["loaded"] < 4
        await asking
        assert answered > 5
        assert (await client.get("/health")).json()["loaded"] == 4
        await ask(7)


@pytest.mark.parametrize(
    "body",
    ["", "{}", '{"rows": 1}', '{"rows": [[]]}', '{"rows": ["x"]}', '{"rows": [[1, NaN]]}'],
)
async def test_the_server_refuses_what_it_cannot_answer(
    cache_dir: Path, child_environment: dict[str, str], body: str
) -> None:
    """With a 400, not a crash."""
    async with serve(cache_dir, child_environment) as client:
        assert (await client.post("/softmax", content=body)).status_code == 400
