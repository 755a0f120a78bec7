"""Tests of where a compiler keeps artifacts, as its users say it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from kernels_async import Compiler, Kernels, SpecificationError
from tests.processes import GOOD

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"


async def origins(*symbols: str, **settings: Any) -> list[str]:
    """Where a compiler with these settings has each artifact from."""
    async with Compiler("sm_90", workers=2, **settings) as compiler:
        return [(await compiler.compile(GOOD, symbol)).origin for symbol in symbols]


def files(folder: Path) -> list[tuple[str, int, float]]:
    """Everything below a folder, with its size and its time."""
    found = [(path, path.stat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), status.st_size, status.st_mtime) for path, status in found]


async def test_a_layer_is_read_and_never_written(tmp_path: Path) -> None:
    """As a cache that is baked into an image, below one that is empty."""
    baked, own = tmp_path / "baked", tmp_path / "own"
    await origins("good<1>", cache_dir=baked)
    for folder in (baked, *(path for path in baked.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    before = files(baked)

    found = await origins("good<1>", "good<2>", cache_dir=own, layers=[baked])
    assert found == ["disk", "compiled"]
    assert files(baked) == before
    assert len(list(own.glob("v1/??/*"))) == 1
    assert await origins("good<1>", cache_dir=own) == ["compiled"]


async def test_a_cache_with_a_key_is_read_with_that_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By argument or by environment; without it and with another it is empty."""
    folder = tmp_path / "cache"
    assert await origins("good<1>", cache_dir=folder, cache_key="one") == ["compiled"]
    assert await origins("good<1>", cache_dir=folder, cache_key="two") == ["compiled"]
    assert await origins("good<1>", cache_dir=folder) == ["compiled"]
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_KEY", "one")
    assert await origins("good<1>", cache_dir=folder) == ["disk"]
    async with Kernels.open("cpu", cache_dir=folder, cache_key="secret") as kernels:
        assert "secret" not in f"{kernels!r} {kernels.compiler!r}"


async def test_a_cache_stays_below_its_number_of_bytes(tmp_path: Path) -> None:
    """The least recently used go; a kernel that does not fit is delivered all the same."""
    folder = tmp_path / "cache"
    (first,) = await origins("good<1>", cache_dir=folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    found = await origins(
        *(f"good<{n}>" for n in range(2, 10)), cache_dir=folder, max_bytes=3 * size
    )
    assert {first, *found} == {"compiled"}
    assert 0 < len(list(folder.glob("v1/??/*"))) <= 3
    assert await origins("good<100>", cache_dir=folder, max_bytes=1) == ["compiled"]


async def test_a_compiler_takes_care_of_its_directory(tmp_path: Path) -> None:
    """`verify`, `prune` and `clear` say what they found and did."""
    folder = tmp_path / "cache"
    async with Compiler("sm_90", cache_dir=folder, workers=2) as compiler:
        made = [await compiler.compile(GOOD, f"good<{n}>") for n in range(4)]
        made[0].path.write_bytes(b"damaged")
        verified = await compiler.verify()
        assert (verified.sound, verified.damaged, verified.unreadable) == (3, 1, 0)
        pruned = await compiler.prune(len(made[1].bytes) * 2)
        assert pruned.removed >= 1
        assert pruned.left <= len(made[1].bytes) * 2
        await compiler.clear()
        assert (await compiler.verify()).sound == 0


async def test_without_a_directory_there_is_nothing_to_take_care_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user without a home."""
    monkeypatch.delenv("KERNELS_ASYNC_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    async with Compiler("sm_90") as compiler:
        assert (await compiler.verify()).sound == 0
        assert (await compiler.prune(0)).removed == (await compiler.clear()).removed == 0


async def test_a_directory_that_others_can_read_is_refused_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and the kernels are delivered."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o755)
    with caplog.at_level(logging.WARNING, "kernels_async"):
        found = await origins("good<1>", "good<2>", "good<1>", cache_dir=folder)

    assert found == ["compiled", "compiled", "disk"]
    assert os.listdir(folder) == []
    told = [record.getMessage() for record in caplog.records]
    assert all(f"chmod 700 {folder}" in text for text in told)
    assert len(told) == len(set(told)) <= 2


@pytest.mark.parametrize(
    "settings",
    [
        {"layers": "/one/path"},
        {"max_bytes": -1},
        {"max_bytes": "1 GB"},
        {"cache_key": ""},
        {"cache_key": 5},
        {"memory": 1},
        {"sandbox": "maybe"},
    ],
)
def test_an_argument_that_cannot_be_right_is_told_at_once(settings: Any) -> None:
    """Not when the first kernel is wanted."""
    with pytest.raises(SpecificationError):
        Compiler("sm_90", **settings)
