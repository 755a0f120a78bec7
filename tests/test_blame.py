"""Tests of who is blamed when workers die."""

from __future__ import annotations

import pytest

from kernels_async import QuarantinedError, ToolchainError, WorkerCrashed, _blame
from kernels_async._blame import Circuit, Quarantine


def test_a_request_is_refused_after_two_deaths_and_not_before() -> None:
    """Others are not, and it is not once it is forgotten."""
    quarantine = Quarantine()
    for number in range(2):
        quarantine.check("key", "'k' of kernel.cu")
        quarantine.blame("key", WorkerCrashed(f"death {number}"))
    quarantine.check("other", "'k' of kernel.cu")
    with pytest.raises(QuarantinedError, match=r"'k' of kernel\.cu .*death 1") as caught:
        quarantine.check("key", "'k' of kernel.cu")
    assert caught.value.history == ("death 0", "death 1")
    quarantine.forget("key")
    quarantine.check("key", "'k' of kernel.cu")


def test_what_is_remembered_of_deaths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest requests are forgotten, and long texts cut."""
    monkeypatch.setattr(_blame, "_KEYS", 3)
    quarantine = Quarantine()
    for number in range(10):
        for _ in range(2):
            quarantine.blame(f"key{number}", WorkerCrashed("x" * 1_000_000))
    quarantine.check("key6", "k")
    for number in range(7, 10):
        with pytest.raises(QuarantinedError) as caught:
            quarantine.check(f"key{number}", "k")
        assert sum(map(len, caught.value.history)) < 10_000


def test_the_circuit_opens_after_several_failures_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For longer and longer, up to a bound; a start closes it."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    circuit = Circuit()
    waits = []
    for _ in range(2):
        circuit.failed(ToolchainError("a worker cannot start: why"))
        circuit.check()
    for _ in range(12):
        circuit.failed(ToolchainError("a worker cannot start: why"))
        with pytest.raises(ToolchainError, match="a worker cannot start: why"):
            circuit.check()
        began = now
        while True:
            now += 0.5
            try:
                circuit.check()
                break
            except ToolchainError:
                continue
        waits.append(now - began)
    assert waits == [1, 2, 4, 8, 16, 32, *[60] * 6]
    circuit.succeeded()
    circuit.failed(ToolchainError("why"))
    circuit.check()
