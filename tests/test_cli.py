"""Tests of the command line, in this process: what each command answers."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

import kernels_async.cli
from kernels_async import (
    Manifest,
    ManifestKernel,
    Source,
    Specialization,
    SpecificationError,
)
from kernels_async._manifest import write_manifest
from kernels_async.cli import _words
from kernels_async.cli._ends import CODES
from tests.commands import Ran, Run, put, runner

SOURCE = "template <class T> __global__ void scale(T* x) { int unused; *x *= FACTOR; }\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process."""
    return runner(capsys)


@pytest.fixture
def three(cache_dir: Path) -> list[str]:
    """Three artifacts in the default cache directory; their keys."""
    return [
        put(cache_dir, "scale<float>", size=5000, seconds=0.2, N="1"),
        put(cache_dir, "scale<double>", size=1000, seconds=3.0),
        put(cache_dir, "plain", "cpu", size=9000, seconds=0.1),
    ]


def symbols(ran: Ran) -> list[str]:
    """The symbols of a list, in its order."""
    return [row["symbol"] for row in ran.document["artifacts"]]


def test_the_list_has_what_is_known_of_each_artifact(run: Run, three: list[str]) -> None:
    """A line each on standard output; what they come to is told on the other one."""
    ran = run("cache", "ls")
    header, *lines = ran.out.splitlines()

    assert (ran.code, len(lines)) == (0, 3)
    names = ["KEY", "KERNEL", "TARGET", "SIZE", "COMPILED IN", "AGE", "USED", "TOOLCHAIN"]
    assert re.split("  +", header) == names
    line = next(line for line in lines if "scale<float>" in line)
    assert line.startswith(f"{three[0][:12]}  scale<float> -DN=1  sm_90")
    assert "200 ms" in line
    assert line.endswith("nvrtc 13.5")
    assert lines[0].endswith("c++ 12.2.0")
    assert ran.err.startswith("3 artifacts, ")
    assert "\x1b" not in ran.out + ran.err


def test_the_list_is_sorted_and_filtered(run: Run, three: list[str]) -> None:
    """By size and time the largest is first."""
    assert symbols(run("cache", "ls", "--json")) == [
        "plain",
        "scale<double>",
        "scale<float>",
    ]
    by_size = run("cache", "ls", "--json", "--sort", "size")
    assert symbols(by_size) == ["plain", "scale<float>", "scale<double>"]
    assert symbols(run("cache", "ls", "--json", "--sort", "time"))[0] == "scale<double>"
    assert symbols(run("cache", "ls", "--json", "--target", "cpu")) == ["plain"]
    found = run("cache", "ls", "--json", "--symbol", "scale").document
    assert {row["target"] for row in found["artifacts"]} == {"sm_90"}
    assert found["bytes"] == sum(row["size"] for row in found["artifacts"])


def test_a_list_uses_nothing_and_makes_nothing(
    run: Run, three: list[str], cache_dir: Path
) -> None:
    """Neither a time changes nor a directory appears."""
    past = time.time() - 7 * 86400
    for folder in (cache_dir / "v1").glob("*/*"):
        os.utime(folder, (past, past))
    listed = run("cache", "ls", "--json").document["artifacts"]
    run("cache", "show", three[0])

    assert {round(row["used"] - past) for row in listed} == {0}
    assert {f.stat().st_mtime for f in (cache_dir / "v1").glob("*/*")} == {past}


def test_a_directory_that_is_given_must_be_there(
    run: Run, cache_dir: Path, tmp_path: Path
) -> None:
    """A slip of the pen is no empty cache; the default one has just not been made yet."""
    nowhere = tmp_path / "none"
    for command in (
        ["cache", "ls"],
        ["cache", "show", "ab"],
        ["cache", "verify"],
        ["cache", "prune", "--max-bytes", "1G"],
        ["cache", "clear", "--yes"],
        ["cache", "export", tmp_path / "b.tar"],
        ["explain", "ab", "cd"],
        ["report", "-o", tmp_path / "page.html"],
    ):
        ran = run(*command, "--cache-dir", nowhere)
        assert (ran.code, ran.out) == (3, "")
        assert ran.err == f"kernels-async: there is no directory {nowhere}\n"
    empty = run("cache", "ls")
    assert (empty.code, empty.out) == (0, "")
    assert empty.err == f"no artifacts, 0 B, in {cache_dir}\n"
    assert not any(path.exists() for path in (nowhere, cache_dir, tmp_path / "page.html"))


def test_a_damaged_artifact_is_counted_and_not_listed(
    run: Run, three: list[str], cache_dir: Path
) -> None:
    """Verify puts it aside, says so and fails; then all is well."""
    record = cache_dir / "v1" / three[0][:2] / three[0][2:] / "artifact.json"
    record.write_bytes(b"{}")
    listed = run("cache", "ls", "--json").document

    assert (len(listed["artifacts"]), listed["damaged"]) == (2, [three[0]])
    assert run("cache", "show", three[0]).code == 1
    verified = run("cache", "verify", "--json")
    assert verified.code == 1
    assert (verified.document["sound"], verified.document["damaged"]) == (2, 1)
    assert "is damaged and not used" in verified.err
    assert run("cache", "verify").code == 0
    assert len(list((cache_dir / "aside").iterdir())) == 1
    place = cache_dir / "v1" / three[1][:2] / three[1][2:]
    place.rename(place.with_name("0" * 62))
    assert run("cache", "ls", "--json").document["damaged"] == [three[1][:2] + "0" * 62]


def test_show_has_everything(run: Run, three: list[str]) -> None:
    """Entries, resources, occupancy, and diagnostics with their escapes made visible."""
    ran = run("cache", "show", three[0][:9].upper())
    document = run("cache", "show", three[0], "--json").document

    for text in (
        three[0],
        "_Zscale<float>",
        "define N",
        "8 B stored, 12 B loaded",
        "1024 B",
    ):
        assert text in ran.out
    assert "16 of 128" in ran.out
    assert "k.cu:3:5: warning: never \\u001b[31mreferenced [177-D]" in ran.out
    assert document["entries"]["options"] == "--std=c++20"
    assert document["resources"]["registers"] == 32
    assert document["occupancy"]["1024"] == 2
    assert document["diagnostics"][0]["code"] == "177-D"
    assert Path(document["path"]).stat().st_size == document["bytes"] == 5000


def test_a_key_is_named_by_how_it_begins(run: Run, cache_dir: Path) -> None:
    """If several begin so they are listed; none, and what is no key, is told apart."""
    keys = [put(cache_dir, f"k{number}") for number in range(17)]
    shared = next(k[0] for k in keys if sum(other[0] == k[0] for other in keys) > 1)
    ran = run("cache", "show", shared)

    assert ran.code == 2
    assert set(re.findall("[0-9a-f]{64}", ran.err)) == {k for k in keys if k[0] == shared}
    missing = run("cache", "show", "0" * 64, "--json")
    assert (missing.code, missing.document["error"]["kind"]) == (1, "NotFoundError")
    for wrong in ("xyz", "../..", "1" * 65, ""):
        assert run("cache", "show", wrong).code == 2


def test_prune_takes_human_sizes(run: Run, three: list[str]) -> None:
    """And says what went."""
    assert run("cache", "prune", "--max-bytes", "1GB", "--json").document["removed"] == 0
    pruned = run("cache", "prune", "--max-bytes", "6k", "--json").document

    assert pruned["left_bytes"] <= 6000
    assert pruned["removed"] + len(symbols(run("cache", "ls", "--json"))) == 3
    assert run("cache", "prune", "--max-bytes", "much").code == 2


def test_clear_needs_a_yes(run: Run, three: list[str]) -> None:
    """Where nobody can be asked it refuses; nothing goes."""
    refused = run("cache", "clear", "--json")

    assert (refused.code, "--yes" in refused.document["error"]["message"]) == (2, True)
    assert len(symbols(run("cache", "ls", "--json"))) == 3
    assert run("cache", "clear", "--yes", "--json").document["removed"] == 3


def test_export_and_import_carry_artifacts(
    run: Run, three: list[str], tmp_path: Path
) -> None:
    """All of them, or some; a second import finds them there."""
    some, everything = tmp_path / "some.tar", tmp_path / "all.tar"
    chosen = run("cache", "export", some, three[0][:12], "--json").document
    run("cache", "export", everything)
    there = ("--cache-dir", tmp_path / "there", "--json")

    assert chosen["exported"] == [three[0]]
    assert chosen["bytes"] == some.stat().st_size
    assert run("cache", "import", some, *there).document["imported"] == [three[0]]
    second = run("cache", "import", everything, *there).document
    assert (second["imported"], second["present"]) == (
        sorted(set(three) - {three[0]}),
        [three[0]],
    )
    assert {path.name for path in tmp_path.glob("*.tar*")} == {"some.tar", "all.tar"}
    assert not list(tmp_path.glob(".*"))


def test_an_export_leaves_out_what_is_damaged(
    run: Run, three: list[str], cache_dir: Path, tmp_path: Path
) -> None:
    """With the rest it is whole, and its code says that something is missing."""
    (cache_dir / "v1" / three[0][:2] / three[0][2:] / "kernel.cubin").write_bytes(b"")
    ran = run("cache", "export", tmp_path / "b.tar", "--json")
    there = run("cache", "import", tmp_path / "b.tar", "--cache-dir", tmp_path / "c")

    assert (ran.code, ran.document["damaged"]) == (1, [three[0]])
    assert ran.document["exported"] == sorted(three[1:])
    assert (there.code, "imported 2 artifacts" in there.out) == (0, True)


def test_an_import_of_another_key_is_refused(
    run: Run, three: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own code and the remedy; so is what is no bundle, or is not there."""
    run("cache", "export", tmp_path / "b.tar")
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_KEY", "secret")
    refused = run("cache", "import", tmp_path / "b.tar")
    (tmp_path / "other").write_bytes(b"hello")

    assert (refused.code, "KERNELS_ASYNC_CACHE_KEY" in refused.err) == (3, True)
    assert run("cache", "import", tmp_path / "other").code == 3
    assert run("cache", "import", tmp_path / "none", "--json").document["exit_code"] == 3


def test_explain_says_in_what_two_artifacts_differ(run: Run, cache_dir: Path) -> None:
    """Entry by entry, as the library does; one with itself in nothing."""
    first = put(cache_dir, "scale<float>", N="1")
    second = put(cache_dir, "scale<float>", N="2", M="3")
    document = run("explain", first[:16], second, "--json").document

    assert [(d["entry"], d["first"], d["second"]) for d in document["differences"]] == [
        ("define N", "1", "2"),
        ("define M", None, "3"),
    ]
    assert (document["first"], document["second"]) == (first, second)
    lines = run("explain", first, second).out.splitlines()
    assert lines[1].split() == ["define", "N", "1", "2"]
    assert "(absent)" in lines[2]
    assert "nothing differs" in run("explain", first, first).out


def test_explain_says_why_a_request_would_miss(run: Run, tmp_path: Path) -> None:
    """Of a kernel that was built here it differs in nothing, or just in what was changed."""
    manifest, source = tmp_path / "m.json", tmp_path / "scale.cu"
    source.write_text(SOURCE)
    kernel = ManifestKernel(
        Source(SOURCE, name="scale.cu"), Specialization("scale<int>", {"FACTOR": "2"})
    )
    write_manifest(manifest, Manifest((kernel,)))
    built = run("build", manifest, "--target", "sm_90", "--json").document["targets"][0]
    key = built["artifacts"][0]["key"]
    request = ("explain", key, "--source", source, "--symbol", "scale<int>", "--json")

    assert run(*request, "-D", "FACTOR=2").document["same"] is True
    missed = run(*request, "-DFACTOR=3", "-O", "--std=c++20").document
    assert [one["entry"] for one in missed["differences"]] == ["define FACTOR", "options"]
    source.write_text(SOURCE + "// edited\n")
    edited = run(*request, "-DFACTOR=2", "--target", "sm_80").document["differences"]
    assert [one["entry"] for one in edited] == ["target", "source text"]
    assert run("explain", key).code == 2
    assert run("explain", key, "--source", source).code == 2


def test_a_build_compiles_what_is_missing_and_fails_alone(
    run: Run, tmp_path: Path, cache_dir: Path
) -> None:
    """For every target; the second time from disk, and what failed fails again."""
    source = Source(SOURCE, name="scale.cu")
    kernels = [
        ManifestKernel(source, Specialization(f"scale<{name}>", {"FACTOR": 2}))
        for name in ("float", "nonsense")
    ]
    other = Specialization("scale<int>", {"FACTOR": 2}, ["-arch=sm_80"])
    manifest = tmp_path / "m.json"
    write_manifest(manifest, Manifest((*kernels, ManifestKernel(source, other))))
    first = run("build", manifest, "--target", "sm_90,sm_80", "--json", "--workers", "2")
    sm_90, sm_80 = first.document["targets"]

    assert first.code == 1
    assert (sm_90["compiled"], sm_90["failed"], sm_90["skipped"]) == (1, 1, 1)
    assert (sm_80["compiled"], sm_80["failed"], sm_80["skipped"]) == (2, 1, 0)
    assert sm_90["failures"][0]["kind"] == "SymbolNotFoundError"
    assert "[1/2] sm_90 " in first.err
    assert "scale<float> -DFACTOR=2 compiled in " in first.err
    again = run("build", manifest, "-t", "sm_90", "--cache-dir", cache_dir)
    assert again.code == 1
    assert again.out.splitlines()[1].split()[:4] == ["sm_90", "0", "1", "1"]
    assert "scale<nonsense> -DFACTOR=2 failed: no kernel 'scale<nonsense>'" in again.out
    assert 'warning: variable "unused"' in again.out
    assert again.out.splitlines()[-1] == f"1 artifact in {cache_dir}"


def test_a_target_that_the_compiler_does_not_know_is_refused_at_once(
    run: Run, tmp_path: Path, cache_dir: Path
) -> None:
    """In one line for all kernels, and before those of another target are compiled."""
    source, manifest = Source(SOURCE), tmp_path / "m.json"
    kernels = [Specialization(f"scale<{name}>", {"FACTOR": 2}) for name in ("int", "float")]
    write_manifest(manifest, Manifest(tuple(ManifestKernel(source, k) for k in kernels)))

    for target in ("sm_999", "sm_10a"):
        ran = run("build", manifest, "--target", f"sm_90,{target}")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        told = f"kernels-async: {target} is not known: this NVRTC compiles for sm_"
        assert ran.err.startswith(told)
    assert run("build", manifest, "--target", "gpu", "--json").code == 2
    assert not cache_dir.exists()
    write_manifest(manifest, Manifest())
    assert run("build", manifest, "--target", "sm_90a,cpu").code == 0


def test_a_build_that_cannot_keep_anything_says_so(
    run: Run, tmp_path: Path, cache_dir: Path
) -> None:
    """An image without the artifacts that it was built for is worth nothing."""
    manifest = tmp_path / "m.json"
    kernel = ManifestKernel(Source(SOURCE), Specialization("scale<int>", {"FACTOR": 2}))
    write_manifest(manifest, Manifest((kernel,)))
    cache_dir.mkdir(mode=0o755)
    cache_dir.chmod(0o755)
    ran = run("build", manifest, "--target", "sm_90", "--json")

    assert (ran.code, ran.document["error"]["kind"]) == (3, "CannotError")
    assert "chmod 700" in ran.err
    assert run("build", tmp_path / "none", "--target", "sm_90").code == 3
    manifest.write_text("{}")
    assert "manifest" in run("build", manifest, "--target", "sm_90").err
    assert run("build", manifest, "--target", "gpu").code == 2
    assert run("build", manifest, "--target", ",").code == 2


def test_wrong_usage_is_told_as_text_or_json(run: Run) -> None:
    """With the code 2 and nothing on standard output, or one document."""
    for wrong in (["cache", "prune"], ["nonsense"], ["cache", "ls", "--sort", "colour"]):
        plain = run(*wrong)
        assert (plain.code, plain.out) == (2, "")
        assert plain.err
        told = run(*wrong, "--json")
        assert (told.code, told.err) == (2, "")
        assert told.document["error"]["message"]


def test_a_file_that_is_refused_is_told_by_its_name(run: Run, tmp_path: Path) -> None:
    """And by the reason in words, whatever is done with it."""
    nothing, folder = tmp_path / "none", tmp_path / "none" / "file"
    key = put(tmp_path / "cache", "k")
    (tmp_path / "cu").write_text("not JSON")
    source = ("explain", key, "--source", nothing, "--symbol", "k")
    refused = [
        run("build", nothing, "--target", "cpu"),
        run("report", nothing),
        run("cache", "import", nothing),
        run(*source, "--cache-dir", tmp_path / "cache"),
    ]

    assert {(ran.code, ran.err) for ran in refused} == {
        (3, f"kernels-async: cannot read {nothing}: No such file or directory\n")
    }
    told = run("cache", "export", folder).err
    assert told == f"kernels-async: cannot write {folder}: No such file or directory\n"
    told = run("build", tmp_path / "cu", "--target", "cpu").err
    assert told.endswith("cu: it is no manifest: it is not JSON\n")
    told = run("report", tmp_path / "cu").err
    assert told.endswith("holds no build: it is neither a page of one nor JSON\n")


def test_a_directory_that_is_not_trusted_is_refused_with_the_remedy(
    run: Run, cache_dir: Path
) -> None:
    """By every command that reads it, without a traceback."""
    cache_dir.mkdir()
    cache_dir.chmod(0o777)

    for command in (["ls"], ["verify"], ["show", "ab"], ["clear", "--yes"]):
        ran = run("cache", *command)
        assert (ran.code, ran.out) == (3, "")
        assert f"chmod 700 {cache_dir}" in ran.err


def test_help_lists_the_exit_codes(run: Run) -> None:
    """All of them; and every command knows `--json`."""
    text = " ".join(run("--help").out.split())

    for code, meaning in CODES.items():
        assert f"{code}: {meaning}" in text
    commands = ("ls", "show", "verify", "prune", "clear", "export", "import")
    for command in [
        ("doctor",),
        ("build",),
        ("explain",),
        *(("cache", c) for c in commands),
    ]:
        assert "--json" in run(*command, "--help").out
    assert run("--version").out.startswith("kernels-async ")
    assert "--install-completion" in text


def test_sizes_and_times_read_as_people_write_them() -> None:
    """And only so."""
    assert [_words.parse_size(t) for t in ("0", "500M", "2G", "1.5GB", "1GiB", "3 kb")] == [
        0,
        500_000_000,
        2_000_000_000,
        1_500_000_000,
        1 << 30,
        3000,
    ]
    for wrong in ("", "-1", "1X", "1iB", "G", "1e9", "9" * 400):
        with pytest.raises(SpecificationError):
            _words.parse_size(wrong)
    assert [_words.size(n) for n in (0, 999, 1000, 123_456, 4_100_000, 10**15)] == [
        *("0 B", "999 B", "1.0 kB", "123 kB", "4.1 MB", "1000 TB")
    ]
    times = [_words.seconds(n) for n in (0.0004, 0.9996, 12.34, 100, 3600 * 30)]
    assert times == ["0 ms", "1.0 s", "12.3 s", "1 min 40 s", "30 h 0 min"]


def test_a_document_has_no_other_text_around_it(run: Run, three: list[str]) -> None:
    """Whatever the command; progress is on the other stream."""
    for command in (["cache", "ls"], ["cache", "verify"], ["cache", "show", three[0]]):
        out = run(*command, "--json").out
        assert json.loads(out)["command"] == " ".join(command[:2])


def test_documents_have_the_shape_that_is_documented(
    run: Run, three: list[str], tmp_path: Path
) -> None:
    """Each command's, as the package's docstring lists it."""
    text = re.sub(r"\n {20}", " ", kernels_async.cli.__doc__ or "")
    shapes = dict(re.findall(r"^    ([a-z ]+?)  +(\w.*)$", text, re.MULTILINE))
    write_manifest(tmp_path / "m.json", Manifest())
    arguments: dict[str, list[object]] = {
        "build": [tmp_path / "m.json", "--target", "sm_90"],
        "explain": [*three[:2]],
        "report": ["-o", tmp_path / "page.html"],
        "cache show": [*three[:1]],
        "cache export": [tmp_path / "b.tar"],
        "cache import": [tmp_path / "b.tar"],
        "cache prune": ["--max-bytes", "1G"],
        "cache clear": ["--yes"],
    }
    del shapes["doctor"]  # its own tests look at it

    for name, shape in shapes.items():
        document = run(*name.split(), *arguments.get(name, ()), "--json").document
        listed = re.sub(r" \[.*?\]", "", shape).split(", ")
        assert [*document] == ["command", "exit_code", *listed]
        for field, inner in re.findall(r"(\w+) \[(.*?)\]", shape):
            found = document[field]
            first = found[0] if isinstance(found, list) and found else found
            assert not first or [*first] == inner.split(", ")
