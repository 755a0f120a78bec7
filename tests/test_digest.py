"""Tests of the artifact key: what enters it, and what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_async import Source, Specialization
from kernels_async._digest import artifact_key, entries

BASE: dict[str, Any] = {
    "identity": "nvrtc 13.5",
    "target": "sm_90",
    "text": "__global__ void k() {}",
    "headers": {"a.h": "1"},
    "name": "k.cu",
    "symbol": "k",
    "defines": {"N": "4"},
    "options": ("-lineinfo",),
}


def make_key(**overrides: Any) -> str:
    """The key of a baseline request with some parts replaced."""
    parts = BASE | overrides
    source = Source(parts["text"], parts["headers"], parts["name"])
    spec = Specialization(parts["symbol"], parts["defines"], parts["options"])
    return artifact_key(entries(parts["identity"], parts["target"], source, spec))


@pytest.mark.parametrize(
    "change",
    [
        {"identity": "nvrtc 13.4"},
        {"target": "sm_90a"},
        {"text": "__global__ void k() {} "},
        {"headers": {"a.h": "2"}},
        {"headers": {"b.h": "1"}},
        {"headers": {}},
        {"name": "other.cu"},
        {"symbol": "k "},
        {"defines": {"N": "5"}},
        {"defines": {"M": "4"}},
        {"defines": {}},
        {"options": ()},
        {"options": ("-lineinfo", "-w")},
    ],
    ids=str,
)
def test_the_key_differs_when_any_part_of_the_request_does(change: dict[str, Any]) -> None:
    """Whatever may change the output changes the key."""
    assert make_key(**change) != make_key()


@pytest.mark.parametrize(
    "other",
    [{"ab": "c"}, {"a": "b", "c": ""}, {"": "abc"}, {"a": "b", "": "c"}, {"abc": ""}],
    ids=repr,
)
def test_no_text_can_be_shifted_into_its_neighbour(other: dict[str, str]) -> None:
    """Names and values are preceded by their lengths."""
    assert artifact_key(other) != artifact_key({"a": "bc"})


NAMES = st.from_regex(r"[a-z]{1,3}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs", "Cc")))
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS.filter(str.strip),
        "headers": st.dictionaries(NAMES, TEXTS, max_size=3),
        "name": NAMES,
        "symbol": TEXTS.filter(lambda text: bool(text.strip()) and text.isprintable()),
        "defines": st.dictionaries(NAMES, NAMES, max_size=3),
        "options": st.lists(st.sampled_from(["-w", "-G", "-lineinfo"]), max_size=3),
    },
)


@given(REQUESTS, REQUESTS)
def test_two_requests_have_one_key_only_if_they_are_equal(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    """No field's text can be shifted into its neighbour."""

    def normal(parts: dict[str, Any]) -> tuple[object, ...]:
        parts = BASE | parts
        texts = (parts["text"].removeprefix("\ufeff"), parts["name"], parts["symbol"])
        headers = {k: v.removeprefix("\ufeff") for k, v in parts["headers"].items()}
        return (*texts, headers, parts["defines"], tuple(parts["options"]))

    assert (make_key(**one) == make_key(**two)) == (normal(one) == normal(two))


def test_the_key_is_the_same_in_another_process_hash_seed_and_directory(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """No path, time or environment enters it."""
    program = (
        "import json, sys\n"
        "from kernels_async import Source, Specialization\n"
        "from kernels_async._digest import artifact_key, entries\n"
        "p = json.load(sys.stdin)\n"
        "s = Source(p['text'], p['headers'], p['name'])\n"
        "c = Specialization(p['symbol'], p['defines'], p['options'])\n"
        "print(artifact_key(entries(p['identity'], p['target'], s, c)))\n"
    )

    def key(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(BASE),
            env=child_environment | {"PYTHONHASHSEED": seed, "HOME": "/"},
            cwd=tmp_path,
            text=True,
            check=True,
            capture_output=True,
        ).stdout.strip()

    assert {key("0"), key("1")} == {make_key()}
