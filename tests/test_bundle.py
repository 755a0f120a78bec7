"""Tests of bundles: what goes out comes in, and nothing else does."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels_async._bundle import BundleError, read_bundle, write_bundle
from kernels_async._inventory import inspect, keys
from kernels_async._record import Seal
from kernels_async._store import Store
from tests.commands import put


def store(root: Path, secret: bytes | None = None) -> Store:
    """A store of artifacts of any kind."""
    return Store(root, "kernel", seal=Seal(secret))


def exported(root: Path, secret: bytes | None = None) -> bytes:
    """A bundle of everything in a cache directory."""
    stream = io.BytesIO()
    place = store(root, secret)
    assert write_bundle(place, keys(place, ""), stream).size == len(stream.getvalue())
    return stream.getvalue()


def members(bundle: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """The members of a bundle, as tar sees them."""
    with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:") as archive:
        return [(m, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]


def packed(
    parts: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.USTAR_FORMAT
) -> bytes:
    """A tar of members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=form) as archive:
        for info, data in parts:
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def imported(
    bundle: bytes, root: Path, secret: bytes | None = None
) -> list[tuple[str, str]]:
    """What became of each artifact of a bundle."""
    read = read_bundle(io.BytesIO(bundle), store(root, secret))
    return [(one.key, one.outcome) for one in read]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A cache directory with artifacts of two toolchains."""
    put(tmp_path / "source", "scale<float>", N="1")
    put(tmp_path / "source", "scale<double>", "cpu")
    return tmp_path / "source"


def test_what_goes_out_comes_in(source: Path, tmp_path: Path) -> None:
    """Bytes, diagnostics and times are the same, and the files are where a read looks."""
    target = tmp_path / "target"
    outcomes = imported(exported(source), target)

    assert [outcome for _, outcome in outcomes] == ["imported"] * 2
    for key, _ in outcomes:
        first, second = inspect(store(source), key), inspect(store(target), key)
        assert (first.bytes, first.entries) == (second.bytes, second.entries)
        assert first.diagnostics == second.diagnostics
        assert first.resources == second.resources
        assert first.path.relative_to(source) == second.path.relative_to(target)


def test_equal_artifacts_make_equal_bundles(source: Path, tmp_path: Path) -> None:
    """Wherever and whenever they were made; tar's own tools read them."""
    bundle = exported(source)
    imported(bundle, tmp_path / "target")

    assert exported(tmp_path / "target") == bundle
    backwards = io.BytesIO()
    write_bundle(store(source), keys(store(source), "")[::-1], backwards)
    assert backwards.getvalue() == bundle
    infos = [info for info, _ in members(bundle)]
    assert {(info.mtime, info.uid, info.uname, info.mode) for info in infos} == {
        (0, 0, "", 0o644)
    }
    assert len(infos) == 5


def test_what_is_there_is_left_alone(source: Path, tmp_path: Path) -> None:
    """It is not written again."""
    bundle, target = exported(source), tmp_path / "target"
    imported(bundle, target)
    before = {path: path.stat().st_ino for path in (target / "v1").rglob("*")}

    assert [outcome for _, outcome in imported(bundle, target)] == ["present"] * 2
    assert {path: path.stat().st_ino for path in (target / "v1").rglob("*")} == before


def test_a_bundle_of_another_key_is_refused_whole(tmp_path: Path) -> None:
    """With, without, or with another one; with the same it is taken, seal and all."""
    for secret in (None, b"one"):
        put(tmp_path / f"from {secret!r}", "k", secret=secret)
    for secret, other in ((None, b"one"), (b"one", None), (b"one", b"two")):
        bundle = exported(tmp_path / f"from {secret!r}", secret)
        with pytest.raises(BundleError, match="KERNELS_ASYNC_CACHE_KEY"):
            imported(bundle, tmp_path / "target", other)
        assert not (tmp_path / "target").exists()
    bundle = exported(tmp_path / "from b'one'", b"one")

    assert imported(bundle, tmp_path / "target", b"one")[0][1] == "imported"


Damage = Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]


def flip_output(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Change a bit of the code."""
    info, data = parts[2]
    parts[2] = (info, bytes([data[0] ^ 1]) + data[1:])


def forge_record(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Claim another time, under the old seal."""
    info, data = parts[1]
    changed = json.dumps(json.loads(data) | {"compile_seconds": 1.25}).encode()
    info.size = len(changed)
    parts[1] = (info, changed)


def claim_other_key(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Put the files under the name of another key."""
    for number in (1, 2):
        info, _ = parts[number]
        info.name = "0" * 64 + info.name[64:]


def rename_output(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Call a cubin a library."""
    name = parts[2][0].name
    swapped = {"kernel.so": "kernel.cubin", "kernel.cubin": "kernel.so"}
    parts[2][0].name = name[:65] + swapped[name[65:]]


def claim_no_time(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Claim a time, well sealed, that no number of seconds can be added to."""
    seal_again(parts, {"compile_seconds": 10**400})


def claim_no_digest(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Claim, well sealed, an output whose digest is none."""
    seal_again(parts, {"output": "\ud800"})


def seal_again(
    parts: list[tuple[tarfile.TarInfo, bytes]], changes: dict[str, object]
) -> None:
    """Change a record, and seal it."""
    info, data = parts[1]
    record = json.loads(data) | changes
    del record["seal"]
    changed = json.dumps(record | {"seal": Seal().of(record)}).encode()
    info.size = len(changed)
    parts[1] = (info, changed)


@pytest.mark.parametrize(
    "damage",
    [
        flip_output,
        forge_record,
        claim_other_key,
        rename_output,
        claim_no_time,
        claim_no_digest,
    ],
)
def test_a_damaged_artifact_is_refused_alone(
    source: Path, tmp_path: Path, damage: Damage
) -> None:
    """The others come in; of it nothing is kept."""
    parts = members(exported(source))
    damage(parts)
    outcomes = imported(packed(parts), tmp_path / "target")

    assert [outcome for _, outcome in outcomes] == ["refused", "imported"]
    assert keys(store(tmp_path / "target"), "") == [outcomes[1][0]]


def test_a_key_is_that_of_what_was_compiled(tmp_path: Path) -> None:
    """A record that is sealed, under a key that is not that of its entries, is refused."""
    from kernels_async._artifact import Output
    from tests.commands import entries_of

    forged = "f" * 64
    output = Output(b"evil", "k", (), None, 0.1)
    Store(tmp_path / "source", "kernel.cubin").publish(forged, entries_of("k"), output)

    assert imported(exported(tmp_path / "source"), tmp_path / "target") == [
        (forged, "refused")
    ]


def link(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """A symbolic link in place of the output."""
    info = parts[2][0]
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


def climb(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """A name that leads out."""
    parts[1][0].name = "../../" + parts[1][0].name


def huge(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """A record larger than any."""
    parts[1][0].size = 17 << 20
    parts[1] = (parts[1][0], b" " * (17 << 20))


def lonely(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """A record without its output."""
    del parts[2]


def ended(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """A record, and nothing more."""
    del parts[2:]


def foreign(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """No title."""
    del parts[0]


def later(parts: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """A layout that is not known."""
    info, data = parts[0]
    parts[0] = (info, data.replace(b'"layout": 1', b'"layout": 2'))


@pytest.mark.parametrize("damage", [link, climb, huge, lonely, ended, foreign, later])
def test_what_no_bundle_has_is_refused(
    source: Path, tmp_path: Path, damage: Damage
) -> None:
    """Links, names that lead out, sizes without bounds, members that are missing."""
    parts = members(exported(source))
    damage(parts)

    with pytest.raises(BundleError):
        imported(packed(parts), tmp_path / "target")
    assert keys(store(tmp_path / "target"), "") == []


def test_names_that_tar_would_extend_are_refused(source: Path, tmp_path: Path) -> None:
    """Headers of other formats may hold anything, so none is read."""
    parts = members(exported(source))
    parts[1][0].pax_headers = {"path": parts[1][0].name}

    with pytest.raises(BundleError, match="no plain file"):
        imported(packed(parts, tarfile.PAX_FORMAT), tmp_path / "target")


def test_a_bundle_that_is_cut_off_says_so(source: Path, tmp_path: Path) -> None:
    """Wherever it ends; what came whole before that is kept."""
    bundle = exported(source)
    whole = bundle.rstrip(b"\0")
    for length in (0, 100, 512, 600, 1024, len(bundle) // 2, len(whole) - 1):
        with pytest.raises(BundleError):
            imported(bundle[:length], tmp_path / str(length))

    assert len(keys(store(tmp_path / str(len(whole) - 1)), "")) == 1


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 1024, b"\x1f\x8b" + b"x" * 600])
def test_any_other_file_is_no_bundle(tmp_path: Path, content: bytes) -> None:
    """Nothing is made of it."""
    with pytest.raises(BundleError):
        imported(content, tmp_path / "target")
    assert not (tmp_path / "target").exists()
