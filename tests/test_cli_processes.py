"""Tests of the command line as a process: terminals, pipes, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels_async import Manifest, ManifestKernel, Source, Specialization
from kernels_async._manifest import write_manifest
from tests.commands import in_terminal, put
from tests.processes import CPU_SLOW, descendants, is_alive

COMMAND = [sys.executable, "-Werror", "-m", "kernels_async"]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Two kernels, of which one is the longer."""
    source = Source("template <int N> __global__ void k(int* p) { *p = N; }", name="k.cu")
    kernels = [
        ManifestKernel(source, Specialization(f"k<{n}>"), 1, {"sm_90": 0.05 * n})
        for n in (1, 2)
    ]
    write_manifest(tmp_path / "m.json", Manifest(tuple(kernels)))
    return tmp_path / "m.json"


def test_a_terminal_shows_bars_workers_and_colours(
    manifest: Path, child_environment: dict[str, str]
) -> None:
    """While it builds; what stays is the table."""
    code, shown = in_terminal(
        ["build", str(manifest), "--target", "cpu"], child_environment
    )

    assert code == 0
    assert "━" in shown
    assert "0/2" in shown
    assert re.search(r"worker 1.*k<\d>.* of about (50|100) ms", shown)
    assert "\x1b[1mTARGET" in shown
    assert "\r\ncpu" in shown[shown.rindex("TARGET") :]


def test_a_terminal_without_colours_gets_plain_text(
    manifest: Path, child_environment: dict[str, str]
) -> None:
    """`NO_COLOR` means no escape at all: what is compiled is told line by line."""
    environment = child_environment | {"NO_COLOR": "1"}
    code, shown = in_terminal(["build", str(manifest), "--target", "sm_90"], environment)

    assert (code, "\x1b" in shown) == (0, False)
    assert "[2/2] sm_90 k<" in shown


def test_clear_asks_on_a_terminal(
    cache_dir: Path, child_environment: dict[str, str]
) -> None:
    """Nothing goes without a yes."""
    key = put(cache_dir, "k")
    place = cache_dir / "v1" / key[:2] / key[2:]
    code, shown = in_terminal(["cache", "clear"], child_environment, b"n\n")

    assert (code, place.exists()) == (1, True)
    assert "nothing was removed" in shown
    ended, shown = in_terminal(["cache", "clear"], child_environment, b"\x04")
    assert (ended, "Traceback" in shown, place.exists()) == (130, False, True)
    assert in_terminal(["cache", "clear"], child_environment, b"y\n")[0] == 0
    assert not place.exists()


@pytest.mark.parametrize(
    ("number", "code", "target"),
    [(signal.SIGINT, 130, "cpu"), (signal.SIGTERM, 143, "sm_90")],
)
def test_a_signal_ends_a_build_and_all_its_processes(
    tmp_path: Path,
    child_environment: dict[str, str],
    number: signal.Signals,
    code: int,
    target: str,
) -> None:
    """At once, quietly, with its code, and in JSON as well."""
    from tests.processes import SLOW

    source, below = (CPU_SLOW, 3) if target == "cpu" else (SLOW, 1)
    kernels = [
        ManifestKernel(Source(f"{source}// {n}\n"), Specialization("slow")) for n in (1, 2)
    ]
    write_manifest(tmp_path / "m.json", Manifest(tuple(kernels)))
    arguments = ["build", str(tmp_path / "m.json"), "--target", target, "--json"]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=child_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while len(below_it := descendants(process.pid)) < 2 * below:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)

    assert process.returncode == code
    assert json.loads(out)["exit_code"] == code
    assert "Traceback" not in err
    assert not any(map(is_alive, below_it))


@pytest.mark.parametrize("ignored", [False, True], ids=["ctrl-c", "in the background"])
def test_a_second_signal_does_not_make_a_build_hang(
    tmp_path: Path, child_environment: dict[str, str], ignored: bool
) -> None:
    """Whenever it comes; a shell's job in the background ignores the Ctrl-C's own."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    number = signal.SIGTERM if ignored else signal.SIGINT
    kernels = [
        ManifestKernel(Source(CPU_SLOW), Specialization("slow", {"X": n})) for n in range(4)
    ]
    write_manifest(tmp_path / "m.json", Manifest(tuple(kernels)))
    for gap in (0.001, 0.005, 0.02):
        place = tmp_path / f"cache {gap}"
        process = subprocess.Popen(
            [*COMMAND, "build", "m.json", "--target", "cpu", "--cache-dir", str(place)],
            cwd=tmp_path,
            env=child_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=ignore if ignored else None,
            text=True,
        )
        deadline = time.monotonic() + 20
        while len(below := descendants(process.pid)) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(number)
        time.sleep(gap)
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
        assert process.returncode in (128 + number, -number)
        assert "Traceback" not in err
        while any(map(is_alive, below)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_signal_ends_doctor_and_its_probes(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """Nothing is left of them on disk either."""
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [*COMMAND, "doctor"],
        env=child_environment | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while len(below := descendants(process.pid)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)

    assert (process.returncode, out, err) == (130, "", "kernels-async: interrupted\n")
    assert not any(map(is_alive, below))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_reader_that_goes_is_no_error(
    cache_dir: Path, child_environment: dict[str, str]
) -> None:
    """As of `kernels-async cache ls | head -1`: quiet, with the code of SIGPIPE."""
    for number in range(3):
        put(cache_dir, f"k{number}")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "cache", "ls", "--json"],
        env=child_environment | {"PYTHONUNBUFFERED": ""},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_that_lacks_letters_gets_escapes(
    cache_dir: Path, child_environment: dict[str, str]
) -> None:
    """As in a container without a locale."""
    put(cache_dir, "κ<int>")
    done = subprocess.run(
        [*COMMAND, "cache", "ls"],
        env=child_environment | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0
    assert b"\\u03ba<int>" in done.stdout


def test_a_bundle_goes_through_a_pipe(
    cache_dir: Path, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """From one machine to another, without a file."""
    put(cache_dir, "k")
    export = subprocess.run(
        [*COMMAND, "cache", "export", "-"],
        env=child_environment,
        capture_output=True,
        check=True,
    )
    imported = subprocess.run(
        [*COMMAND, "cache", "import", "-", "--cache-dir", str(tmp_path / "there")],
        env=child_environment,
        input=export.stdout,
        capture_output=True,
        check=True,
    )

    assert b"exported 1 artifact" in export.stderr
    assert imported.stdout.startswith(b"imported 1 artifact into ")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_without_typer_it_says_what_to_install(
    child_environment: dict[str, str], more: list[str]
) -> None:
    """One line, or one document, and the code of what cannot work."""
    program = (
        "import sys; sys.modules['typer'] = None\n"
        "from kernels_async.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "cache", "ls", *more],
        env=child_environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 3
    said = json.loads(done.stdout)["error"]["message"] if more else done.stderr
    assert "pip install 'kernels_async[cli]'" in said
    assert bool(done.stdout) is bool(more)


def test_it_completes_for_shells(child_environment: dict[str, str]) -> None:
    """Its commands, by Typer's own protocol."""
    environment = child_environment | {
        "_KERNELS_ASYNC_COMPLETE": "complete_bash",
        "COMP_WORDS": "kernels-async cache ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        COMMAND, env=environment, capture_output=True, text=True, check=True
    )

    assert {"ls", "show", "import"} <= set(done.stdout.split())
