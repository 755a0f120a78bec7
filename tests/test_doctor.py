"""Tests of `kernels-async doctor`: what it finds, and that it changes nothing."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_async.__main__ import main
from kernels_async._errors import ToolchainError
from kernels_async.cli import _device_checks, _place_checks, _toolchain_checks
from kernels_async.cli._bench import Bench, ProbeError
from kernels_async.cli._findings import Check, Finding, Status, ok, problem, run_checks
from tests.commands import Ran, put
from tests.processes import children

H200 = {"name": "NVIDIA H200", "target": "sm_90", "memory": 150 << 30}


def found(checks: list[Check]) -> dict[str, Finding]:
    """What checks find, by name."""
    return {finding.check: finding for finding in run_checks(checks, lambda _: None)}


def in_place(cache_dir: Path) -> dict[str, Finding]:
    """What the checks of the places find."""
    return found(_place_checks.checks(cache_dir))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def test_a_machine_that_works_has_no_problems_and_is_left_as_it_was(
    cache_dir: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real compiles with each toolchain, a launch on the CPU; no directory is made."""
    code = main(["doctor", "--json"])
    document = Ran(code, *capsys.readouterr()).document
    findings = {finding["check"]: finding for finding in document["findings"]}

    assert (code, document["counts"]["problem"]) == (0, 0)
    for name in ("compile cpu", "compile sm_90", "compile sm_90 slim"):
        assert findings[name]["status"] == "ok"
    assert "compiled and ran" in findings["compile cpu"]["text"]
    assert findings["NVRTC"]["text"].startswith("13.")
    assert findings["sandbox"]["status"] in ("ok", "warning")
    assert "it will be made" in findings["cache directory"]["text"]
    assert list(document["counts"]) == ["ok", "note", "warning", "problem"]
    assert not cache_dir.exists()
    assert list(temporary.iterdir()) == []
    assert not Path.home().exists()


def test_problems_have_remedies_and_a_code(
    cache_dir: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A compiler that is not there, a directory that others can read."""
    cache_dir.mkdir()
    cache_dir.chmod(0o755)
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setenv("PYTHONMALLOC", "nonsense")  # so that no probe starts
    code = main(["doctor"])
    out = capsys.readouterr().out

    assert code == 1
    assert re.search(r"problem +C\+\+ compiler +\$CXX names '/nowhere/c\+\+'", out)
    assert f"-> chmod 700 {cache_dir}" in out
    assert re.search(
        r"problem +compile sm_90 +it ended with code 1: Fatal Python error", out
    )
    assert re.search(r"\n\d problems, \w+ warnings?\n$", out)
    assert cache_dir.stat().st_mode & 0o777 == 0o755


def test_a_check_that_raises_or_hangs_harms_no_other() -> None:
    """What it found before is kept; the others are in their order."""
    held = threading.Event()

    def raising() -> Iterator[Finding]:
        yield ok("first", "found before")
        raise ToolchainError("g++ was not found: install g++")

    def hanging() -> Iterator[Finding]:
        yield ok("second", "found before")
        held.wait()

    def working() -> Iterator[Finding]:
        yield ok("third", "well")
        yield ok("third", "well")

    waited: list[list[str]] = []
    checks = [Check("a", raising), Check("b", hanging, 0.3), Check("c", working)]
    findings = run_checks(checks, lambda names: waited.append(list(names)))
    held.set()

    assert findings == [
        ok("first", "found before"),
        problem("a", "g++ was not found", "install g++"),
        ok("second", "found before"),
        problem("b", "it did not answer within 0.3 s"),
        ok("third", "well"),
    ]
    assert waited[-1] == ["b"]


def test_a_probe_that_takes_too_long_is_killed() -> None:
    """With all that it started, and its folder."""
    with Bench() as bench:
        with pytest.raises(ProbeError, match=r"did not end within 0\.2 s"):
            bench.probe("compile", "cpu", seconds=0.2)
        with pytest.raises(ProbeError, match="nonsense"):
            bench.probe("nonsense", seconds=20)
        assert children() == []


def test_probes_end_with_the_bench(temporary: Path) -> None:
    """As when somebody presses Ctrl-C: none is left, whoever waits for one is told."""
    told: list[str] = []

    def probe(bench: Bench) -> None:
        try:
            bench.probe("compile", "sm_90", seconds=20)
        except ProbeError as error:
            told.append(str(error))

    with Bench() as bench:
        waiting = threading.Thread(target=probe, args=(bench,))
        waiting.start()
        deadline = time.monotonic() + 10
        while not children():
            assert time.monotonic() < deadline
            time.sleep(0.005)
    waiting.join(10)

    assert told == [f"it was killed by {signal.SIGKILL.name}"]
    assert children() == []
    assert list(temporary.iterdir()) == []


def test_a_cache_directory_is_looked_at_closely(cache_dir: Path) -> None:
    """Owner and modes, room, locks, entries; nothing in it changes."""
    put(cache_dir, "k")
    before = sorted((p, p.stat().st_mtime_ns) for p in cache_dir.rglob("*"))
    findings = in_place(cache_dir)

    assert findings["cache directory"].status is Status.OK
    assert findings["cache locks"] == ok(
        "cache locks", "a file there can be written and locked"
    )
    assert findings["cache entries"].text.startswith("1 artifact, ")
    assert sorted((p, p.stat().st_mtime_ns) for p in cache_dir.rglob("*")) == before
    (cache_dir / "aside" / "one").mkdir(parents=True)
    assert in_place(cache_dir)["cache damage"].status is Status.WARNING


def test_a_cache_directory_that_is_not_used_is_a_problem(tmp_path: Path) -> None:
    """Because others can change it, or what leads to it."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    whole, inner = in_place(tmp_path / "open"), in_place(tmp_path / "open" / "cache")
    (tmp_path / "file").touch()

    remedies = [whole["cache directory"].remedy, inner["cache directory"].remedy]
    assert remedies == [f"chmod 700 {tmp_path / 'open'}", f"chmod go-w {tmp_path / 'open'}"]
    assert "cache entries" not in whole  # one cause is one problem
    assert in_place(tmp_path / "file")["cache directory"].status is Status.PROBLEM


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's directory takes root")
def test_a_directory_of_another_user_is_a_problem(tmp_path: Path) -> None:
    """And the remedy is one of your own."""
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    finding = in_place(tmp_path / "theirs")["cache directory"]

    assert finding.status is Status.PROBLEM
    assert "belongs to user 12345" in finding.text
    assert "KERNELS_ASYNC_CACHE_DIR" in finding.remedy


def test_what_a_temporary_directory_lacks_is_told(temporary: Path, cache_dir: Path) -> None:
    """A folder of ours that others can write is not used, and the remedy says which."""
    folder = temporary / f"kernels_async-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    checks = [c for c in _place_checks.checks(cache_dir) if c.name == "temporary directory"]
    findings = run_checks(checks, lambda _: None)

    assert findings[-1].status is Status.WARNING
    assert findings[-1].remedy == f"chmod 700 {folder}"


def judged(
    devices: list[dict[str, object]], driver: list[int], *, has_driver: bool = True
) -> dict[str, Finding]:
    """What a report on devices means here, with an NVRTC 13."""
    report: dict[str, object] = {
        "cupy": "14.2",
        "runtime": [13, 2],
        "driver": driver,
        "devices": devices,
    }
    findings = _device_checks.judge(report, has_driver)
    return {finding.check: finding for finding in findings}


def test_a_driver_older_than_nvrtc_is_a_problem() -> None:
    """If its major version is: of its own one it loads cubins of any minor version."""
    old, minor, new = (
        judged([H200], driver)["driver"] for driver in ([12, 8], [13, 0], [14, 1])
    )

    assert (old.status, minor.status, new.status) == (Status.PROBLEM, Status.OK, Status.OK)
    assert "kernels_async[cuda12]" in old.remedy
    assert "same major version" in minor.text


def test_a_gpu_that_nvrtc_does_not_know_is_a_problem() -> None:
    """Each architecture once."""
    volta = H200 | {"name": "Tesla V100", "target": "sm_70"}
    findings = judged([H200, volta, volta], [13, 2])

    assert findings["GPU architecture"].status is Status.PROBLEM
    assert findings["GPU architecture"].text.startswith("sm_70 is not known")
    assert findings["cuda:2"].text == "Tesla V100, sm_70, 161 GB"
    assert "GPU architecture" not in judged([H200], [13, 2])
    assert _toolchain_checks.unknown_target("sm_90") is None


def test_no_gpu_is_no_problem_but_a_driver_without_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the environment hides it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert judged([], [0, 0], has_driver=False)["GPU"].status is Status.NOTE
    assert judged([], [0, 0])["GPU"].status is Status.PROBLEM
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = judged([], [13, 0])["GPU"]
    assert (hidden.status, hidden.remedy) == (Status.NOTE, "unset CUDA_VISIBLE_DEVICES")


def test_a_cache_key_that_is_none_is_a_problem_of_the_cache_alone(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other checks go on."""
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_KEY", "")
    findings = in_place(cache_dir)

    assert findings["cache directory"].status is Status.PROBLEM
    assert findings["temporary directory"].status is not Status.PROBLEM
