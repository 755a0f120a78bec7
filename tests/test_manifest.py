"""Tests of manifests: content, no paths, whole or a clear error."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from kernels_async import (
    Kernels,
    Manifest,
    ManifestError,
    ManifestKernel,
    Source,
    Specialization,
)
from kernels_async._manifest import FORMAT
from kernels_async._value import digest
from tests.processes import until

SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
HEADED = Source(
    '#include "v.h"\n__global__ void f(int* p) { *p = V; } // ü', {"v.h": "#define V 1"}
)
KERNELS = (
    ManifestKernel(SOURCE, Specialization("add<1>"), 7, {"cpu": 0.5, "sm_90": 0.25}),
    ManifestKernel(SOURCE, Specialization("add<2>", {"N": 4}, ["-std=c++17"])),
    ManifestKernel(HEADED, Specialization("f", options=["-arch=sm_90a"]), 1),
)
MANIFEST = Manifest(KERNELS)


def edited(change: Any) -> bytes:
    """The manifest with a change and the right digest."""
    record = json.loads(MANIFEST.encode())
    change(record)
    content = {name: record.get(name) for name in ("kernels", "sources", "texts")}
    record["digest"] = digest(json.dumps(content, sort_keys=True).encode())
    return json.dumps(record).encode()


async def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Sources, headers, defines, options, counts and times."""
    path = tmp_path / "new" / "kernels.manifest.json"
    await MANIFEST.save(path)
    assert await Manifest.load(path) == MANIFEST
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_manifest_holds_no_path_of_the_host(tmp_path: Path) -> None:
    """Whatever files its sources were read from."""
    (tmp_path / "v.h").write_text("#define V 1\n")
    (tmp_path / "k.cu").write_text(
        '#include "v.h"\n__global__ void f(int* p) { *p = V; }\n'
    )
    source = await Source.load(tmp_path / "k.cu")
    data = Manifest((ManifestKernel(source, Specialization("f")),)).encode()
    assert str(tmp_path).encode() not in data
    assert Manifest.decode(data).kernels[0].source == source


def test_a_text_that_several_kernels_share_is_written_once() -> None:
    """A source of a megabyte with a hundred specializations stays one."""
    assert MANIFEST.encode().count(b"template <int N>") == 1


@pytest.mark.parametrize("seed", range(300))
def test_a_damaged_manifest_is_refused(seed: int) -> None:
    """Whichever byte is another, or missing; layout alone does not matter."""
    chance = random.Random(seed)
    data = bytearray(MANIFEST.encode())
    place = chance.randrange(len(data))
    if seed % 3:
        data[place] ^= 1 << chance.randrange(8)
    else:
        del data[place:]
    try:
        found = Manifest.decode(bytes(data))
    except ManifestError:
        return
    assert found == MANIFEST


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no manifest"),
        (b"\x00\xff", "no manifest"),
        (b"[" * 100_000, "no manifest"),
        (b"[]", "its format is None"),
        (b'{"format": "kernels_async manifest 2"}', "manifest 2"),
        (b'{"name": "package", "version": "1.0.0"}', "its format is None"),
        (MANIFEST.encode().replace(b"add<1>", b"add<3>"), "edited"),
    ],
)
def test_what_is_no_manifest_says_so(data: bytes, told: str) -> None:
    """Foreign files, other versions, and ones edited by hand."""
    with pytest.raises(ManifestError, match=told):
        Manifest.decode(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["kernels"][0].update(count=-1),
        lambda record: record["kernels"][0].update(count=True),
        lambda record: record["kernels"][0].update(compile_seconds={"cpu": "1"}),
        lambda record: record["kernels"][0].update(compile_seconds=None),
        lambda record: record["kernels"][0].update(compile_seconds={"cpu": 10**400}),
        lambda record: record["kernels"][0].update(compile_seconds={"cpu": 1e300}),
        lambda record: record["kernels"][0].update(compile_seconds={"\ud800": 1.0}),
        lambda record: record["kernels"][0].update(compile_seconds={"../x": 1.0}),
        lambda record: record["kernels"][0].update(source="elsewhere"),
        lambda record: record["kernels"][0].update(symbol=3),
        lambda record: record["kernels"][0].update(options="-I/etc"),
        lambda record: record["kernels"][0].update(options=["-I/etc"]),
        lambda record: record["kernels"].append(None),
        lambda record: record.update(kernels=None),
        lambda record: record.update(texts=[]),
        lambda record: next(iter(record["sources"].values())).update(name="../../x"),
        lambda record: next(iter(record["sources"].values())).update(headers={"/a.h": ""}),
    ],
)
def test_a_well_sealed_manifest_that_cannot_be_right_is_refused(change: Any) -> None:
    """Whoever made it: nothing of another kind gets in."""
    with pytest.raises(ManifestError):
        Manifest.decode(edited(change))


def test_a_time_without_end_is_no_time() -> None:
    """JSON has no infinity, and what is read is written again by a recording."""
    seal = edited(
        lambda record: record["kernels"][0].update(compile_seconds={"cpu": float("inf")})
    )
    with pytest.raises(ManifestError, match="time"):
        Manifest.decode(seal.replace(b"Infinity", b"1e999"))


def test_a_count_that_nothing_counts_can_be_added_to() -> None:
    """So that a file does not grow, by one more, into one that is refused."""
    read = Manifest.decode(
        edited(lambda record: record["kernels"][0].update(count=10**4000))
    )
    more = read.merged(read).encode()
    assert Manifest.decode(more).kernels[0].count == read.kernels[0].count


async def test_a_manifest_of_any_depth_is_refused(tmp_path: Path) -> None:
    """Also of one that can be read and not written again."""
    path = tmp_path / "kernels.manifest.json"
    for depth in range(900, 1000):
        nested = "[" * depth + "]" * depth
        path.write_text(f'{{"format": "{FORMAT}", "digest": "", "kernels": {nested}}}')
        with pytest.raises(ManifestError):
            await Manifest.load(path)


async def test_an_error_names_the_file(tmp_path: Path) -> None:
    """So that an operator knows which one."""
    path = tmp_path / "package.json"
    path.write_text("{}")
    with pytest.raises(ManifestError, match=r"package\.json: it is no"):
        await Manifest.load(path)
    with pytest.raises(FileNotFoundError):
        await Manifest.load(tmp_path / "absent")


def test_manifests_merge_by_what_they_name() -> None:
    """Counts add up, and the times of the other are newer."""
    other = Manifest(
        (
            ManifestKernel(SOURCE, Specialization("add<1>"), 3, {"cpu": 2.0}),
            ManifestKernel(SOURCE, Specialization("add<9>"), 1),
        )
    )
    merged = MANIFEST.merged(other).kernels
    assert [(k.specialization.symbol, k.count) for k in merged] == [
        ("add<1>", 10),
        ("add<2>", 0),
        ("f", 1),
        ("add<9>", 1),
    ]
    assert merged[0].compile_seconds == {"cpu": 2.0, "sm_90": 0.25}


def test_the_longest_compiles_come_first() -> None:
    """Those that nobody knows before them; those of another target not at all."""
    times = {
        "a": {"cpu": 1.0},
        "b": {"cpu": 3.0, "sm_90": 0.1},
        "c": {},
        "d": {"sm_90": 2.0},
    }
    kernels = tuple(
        ManifestKernel(SOURCE, Specialization(symbol), 1, seconds)
        for symbol, seconds in times.items()
    )
    pinned = ManifestKernel(SOURCE, Specialization("e", options=["-arch=sm_80"]))
    ordered = Manifest((*kernels, pinned)).longest_first("cpu")
    assert [kernel.specialization.symbol for kernel in ordered] == ["c", "b", "d", "a"]


async def test_what_a_cache_was_asked_for_is_recorded(
    tmp_path: Path, warm_dir: Path
) -> None:
    """With how often and how long, before and after the call, at the latest at the end."""
    path = tmp_path / "kernels.manifest.json"
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        await kernels.get(SOURCE, "add<1>")
        recording = kernels.record(path)
        for _ in range(2):
            await kernels.get(SOURCE, "add<1>")
        await recording.save()
        assert [k.count for k in (await Manifest.load(path)).kernels] == [3]
        written = path.stat().st_mtime_ns
        await recording.save()
        assert path.stat().st_mtime_ns == written
        await kernels.get(SOURCE, "add<1>")
        artifact = (await kernels.get(HEADED, "f")).artifact
        kernels.request(SOURCE, "add<3>")
    first, second = (await Manifest.load(path)).kernels
    assert (first.source, first.specialization, first.count) == (
        SOURCE,
        Specialization("add<1>"),
        4,
    )
    assert (second.source, second.count) == (HEADED, 1)
    assert second.compile_seconds == {"cpu": artifact.compile_seconds}


async def test_what_is_new_is_in_the_file_before_the_server_ends(
    tmp_path: Path, warm_dir: Path
) -> None:
    """As it may be killed."""
    path = tmp_path / "kernels.manifest.json"
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        recording = kernels.record(path)
        await kernels.get(SOURCE, "add<1>")
        await until(path.exists)
        assert len((await Manifest.load(path)).kernels) == 1
        assert repr(recording) == f"<Recording {path} kernels=1>"


async def test_several_servers_record_to_one_file(tmp_path: Path, warm_dir: Path) -> None:
    """Nothing that one adds is lost by another's adding."""
    path = tmp_path / "kernels.manifest.json"
    async with (
        Kernels.open("cpu", cache_dir=warm_dir) as first,
        Kernels.open("cpu", cache_dir=warm_dir) as second,
    ):
        recordings = [first.record(path), second.record(path)]
        await first.get(SOURCE, "add<1>")
        await second.get(SOURCE, "add<2>")
        await second.get(SOURCE, "add<1>")
        for recording in recordings:
            await recording.save()
    found = {k.specialization.symbol: k.count for k in (await Manifest.load(path)).kernels}
    assert found == {"add<1>": 2, "add<2>": 1}


async def test_a_save_that_is_cancelled_counts_nothing_twice(
    tmp_path: Path, warm_dir: Path
) -> None:
    """Its thread goes on alone; what it adds is in the file once."""
    path = tmp_path / "kernels.manifest.json"
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        recording = kernels.record(path)
        await kernels.get(SOURCE, "add<1>")
        folder = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            saving = asyncio.create_task(recording.save())
            await asyncio.sleep(0.05)
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            assert saving.cancelled()
        finally:
            os.close(folder)
        await until(path.exists)
        await recording.save()
    assert [kernel.count for kernel in (await Manifest.load(path)).kernels] == [1]


async def test_what_is_no_file_is_not_recorded_to(
    tmp_path: Path, warm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe that nobody writes to would hold up the end of the cache."""
    path = tmp_path / "kernels.manifest.json"
    os.mkfifo(path)
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        kernels.record(path)
        await kernels.get(SOURCE, "add<1>")
    assert "is no file" in caplog.text


async def test_a_link_to_a_manifest_stays_a_link(tmp_path: Path, warm_dir: Path) -> None:
    """What it leads to is written."""
    path, link = tmp_path / "kernels.manifest.json", tmp_path / "link.json"
    link.symlink_to(path)
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        kernels.record(link)
        await kernels.get(SOURCE, "add<1>")
    assert link.is_symlink()
    assert len((await Manifest.load(path)).kernels) == 1


async def test_a_foreign_file_is_not_recorded_over(
    tmp_path: Path, warm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays as it is, and the log says why nothing is recorded."""
    path = tmp_path / "package.json"
    path.write_text('{"name": "package"}')
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        recording = kernels.record(path)
        await kernels.get(SOURCE, "add<1>")
        with pytest.raises(ManifestError, match=r"package\.json"):
            await recording.save()
    assert path.read_text() == '{"name": "package"}'
    assert caplog.text.count("is not recorded") == 1
