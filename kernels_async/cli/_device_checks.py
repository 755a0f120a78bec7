"""Checks of the GPUs: what there is, and whether a kernel loads and runs there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from .._errors import ToolchainError
from ..toolchains._toolkit import find_library, version_of
from ._bench import Bench, ProbeError
from ._findings import Check, Finding, from_error, note, ok, problem
from ._toolchain_checks import unknown_target
from ._words import line, seconds, size

_SECONDS = 60.0
_LAUNCH_SECONDS = 120.0
_MOST_DEVICES = 16
_NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
_INSTALL = "pip install 'kernels_async[cuda13]' (or [cuda12] for a driver before CUDA 13)"


def checks(bench: Bench) -> list[Check]:
    """Those of the devices."""
    most = _SECONDS + _LAUNCH_SECONDS + 5
    return [Check("GPU", partial(look_for_gpus, bench), most)]


def look_for_gpus(bench: Bench) -> Iterator[Finding]:
    """What CuPy, the driver and NVRTC say of the GPUs, and what a launch says."""
    has_driver = any(node.exists() for node in _NODES)
    if find_spec("cupy") is None:
        if has_driver:
            yield problem(
                "GPU", "there is an NVIDIA driver, and no CuPy to use it", _INSTALL
            )
        else:
            yield note("GPU", "none: kernels run on the CPU", "")
        return
    try:
        report = bench.probe("devices", seconds=_SECONDS)
    except ProbeError as error:
        yield from_error("GPU", error)
        return
    yield from judge(report, has_driver)
    devices = _devices(report)
    if devices and unknown_target(devices[0]["target"]) is None:
        for ordinal in range(min(len(devices), _MOST_DEVICES)):
            yield _launch(bench, ordinal)


def judge(report: dict[str, object], has_driver: bool) -> Iterator[Finding]:
    """What a probe's report on the devices means.

    Args:
        report: The report.
        has_driver: Whether the machine has the device files of a driver.
    """
    yield ok("CuPy", f"{report['cupy']}, for CUDA {_dotted(report['runtime'])}")
    devices, driver = _devices(report), _pair(report["driver"])
    if not devices:
        yield _no_device(driver, has_driver)
        return
    for ordinal, device in enumerate(devices):
        text = f"{line(device['name'])}, {device['target']}, {size(int(device['memory']))}"
        yield ok(f"cuda:{ordinal}", text)
    yield _driver(driver)
    for target in dict.fromkeys(device["target"] for device in devices):
        wrong = unknown_target(target)
        if wrong is not None:
            yield wrong


def _no_device(driver: tuple[int, int], has_driver: bool) -> Finding:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if has_driver and visible is not None:
        text = f"none: CUDA_VISIBLE_DEVICES={line(visible)} hides them"
        return note("GPU", text, "unset CUDA_VISIBLE_DEVICES")
    if has_driver:
        said = "answers nothing" if driver == (0, 0) else "has none"
        return problem("GPU", f"none, though there is a driver, which {said}", "nvidia-smi")
    return note("GPU", "none, and no driver: kernels run on the CPU")


def _driver(driver: tuple[int, int]) -> Finding:
    """Whether the driver loads what NVRTC makes: cubins of its own major version."""
    text = f"for CUDA {driver[0]}.{driver[1]}"
    try:
        version = version_of(find_library())
    except ToolchainError:
        return ok("driver", text)
    made = f"NVRTC {version[0]}.{version[1]}"
    if version[0] > driver[0]:
        remedy = f"pip install 'kernels_async[cuda{driver[0]}]', or install a newer driver"
        return problem("driver", f"{text}: it does not load what {made} makes", remedy)
    if version > driver:
        return ok(
            "driver", f"{text}; it loads what {made} makes, of the same major version"
        )
    return ok("driver", f"{text}; it loads what {made} makes")


def _launch(bench: Bench, ordinal: int) -> Finding:
    name = f"launch cuda:{ordinal}"
    try:
        report = bench.probe("launch", str(ordinal), seconds=_LAUNCH_SECONDS)
    except ProbeError as error:
        return from_error(name, error)
    took = report["seconds"]
    assert isinstance(took, float)  # noqa: S101 - the probe is our own
    return ok(name, f"a small kernel compiled, loaded and ran, in {seconds(took)}")


def _devices(report: dict[str, object]) -> list[dict[str, str]]:
    devices = report["devices"]
    assert isinstance(devices, list)  # noqa: S101 - the probe is our own
    return devices


def _pair(version: object) -> tuple[int, int]:
    assert isinstance(version, list)  # noqa: S101 - the probe is our own
    return version[0], version[1]


def _dotted(version: object) -> str:
    return ".".join(map(str, _pair(version)))
