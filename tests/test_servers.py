"""Tests of the servers that workers have: killed, replaced, forked, first of all processes.

Whatever becomes of one, its workers and the compilers that they run end with it; and
whatever it closed, or never had, it is served.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import GOOD, descendants, is_alive, server

PROLOGUE = f"""
import asyncio, os, subprocess, sys, threading, time
from kernels_async import *
from tests.processes import CPU_SLOW, SLOW, children, descendants
GOOD = {GOOD!r}
"""
SERVER = """
target, busy, how = sys.argv[1:]
async def main():
    compiler = await Compiler(target, workers=2).__aenter__()
    text, below = (CPU_SLOW, 3) if target == "cpu" else (SLOW, 1)
    if busy == "busy":
        globals()["tasks"] = [
            asyncio.ensure_future(compiler.compile(f"{text}// {n}", "slow")) for n in (1, 2)]
        while len(descendants(os.getpid())) < 2 * below:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
    else:
        await compiler.compile(GOOD, "good<1>")
    workers = descendants(os.getpid())
    forked = 0
    if "fork" in how and not (forked := os.fork()):
        time.sleep(1000)
        os._exit(0)
    print(forked, *workers, flush=True)
    sys.stdin.readline()
    if "exec" in how:
        os.execvp("sleep", ["sleep", "1000"])
    return compiler
def thread():
    loop = asyncio.new_event_loop()
    globals()["kept"] = loop, loop.run_until_complete(main())
if how == "thread":
    started = threading.Thread(target=thread)
    started.start()
    started.join()
else:
    asyncio.run(main())
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["kill", "fork, kill", "exec", "fork, exec", "thread"])
@pytest.mark.parametrize("busy", ["busy", "idle"])
@pytest.mark.parametrize("target", ["sm_90", "cpu"])
def test_workers_end_with_their_server(target: str, busy: str, how: str) -> None:
    """Killed, become another program, or without its loop's thread; forked or not."""
    program = PROLOGUE + SERVER
    with server(program, target, busy, how, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        forked, *workers = map(int, process.stdout.readline().split())
        try:
            assert workers
            assert all(map(is_alive, workers))
            process.stdin.write("\n")
            process.stdin.flush()
            if "kill" in how:
                process.kill()
            deadline = time.monotonic() + 2
            while any(map(is_alive, workers)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            if forked:
                os.kill(forked, 9)


INIT = """
async def main():
    assert os.getpid() == 1
    other = subprocess.Popen(["sh", "-c", "exit 5"], start_new_session=True)
    async with Compiler("cpu", workers=2, timeout=1) as compiler:
        for _ in range(2):
            tasks = [compiler.compile(f"{CPU_SLOW}// {n}", "slow") for n in (1, 2)]
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(outcome, CompileTimeout), outcome
    async with Compiler("cpu", workers=1) as compiler:
        print((await compiler.compile(GOOD, "good<1>")).entry)
    print("left", children(), "other", other.wait())
asyncio.run(main())
"""


def namespaced(*command: str) -> list[str]:
    """A command as the first process of a namespace; the test is skipped if it may not be."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no new process namespace: {tried.stderr.decode().strip()}")
    return [*unshare, *command]


def printed(command: list[str], environment: dict[str, str]) -> tuple[str, str]:
    """What a program prints to its two outputs."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=50
    )
    return done.stdout, done.stderr


def test_a_server_that_is_the_first_process_reaps_its_own_orphans(
    child_environment: dict[str, str],
) -> None:
    """Compilers of killed workers become its children; no other child's status is taken."""
    told = printed(
        namespaced(sys.executable, "-X", "dev", "-c", PROLOGUE + INIT), child_environment
    )
    assert told == ("_Z4goodILi1EEvPi\nleft [2] other 5\n", "")


def test_a_server_that_adopts_orphans_leaves_no_zombie() -> None:
    """As a subreaper does."""
    program = PROLOGUE + (
        "import ctypes\n"
        "assert not ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "async def main():\n"
        "    async with Compiler('cpu', workers=1, timeout=0.7) as compiler:\n"
        "        try:\n"
        "            await compiler.compile(CPU_SLOW, 'slow')\n"
        "        except CompileTimeout:\n"
        "            print('left', children())\n"
        "asyncio.run(main())\n"
    )
    with server(program) as process:
        assert process.communicate() == ("left []\n", "")


WAYS = {
    "closed": "for number in (0, 1, 2): os.close(number)",
    "closed input": "os.close(0)",
    "daemon": (
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.chdir('/'); os.umask(0)\n"
        "null = os.open('/dev/null', os.O_RDWR)\n"
        "for number in (0, 1, 2): os.dup2(null, number)"
    ),
    "all closed": "os.closerange(0, 256)",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_server_without_its_standard_files_is_served(tmp_path: Path, way: str) -> None:
    """Closed, or a daemon's: kernels, warnings and crashes come as ever."""
    answer = tmp_path / "answer"
    program = (
        f"{PROLOGUE}{WAYS[way]}\n"
        "async def main():\n"
        "    found = []\n"
        "    for target in ('sm_90', 'cpu'):\n"
        "        async with Compiler(target, workers=1) as compiler:\n"
        "            os.chdir(os.path.dirname(sys.argv[1]))\n"
        "            found.append((await compiler.compile(GOOD, 'good<1>')).entry)\n"
        "            os.kill(children()[0], 9)\n"
        "            found.append((await compiler.compile(GOOD, 'good<2>')).entry)\n"
        "    with open('unfinished', 'w') as file:\n"
        "        file.write(' '.join(found))\n"
        "    os.rename('unfinished', sys.argv[1])\n"
        "asyncio.run(main())\n"
    )
    with server(program, str(answer)) as process:
        deadline = time.monotonic() + 30
        while not answer.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert answer.read_text() == " ".join(["_Z4goodILi1EEvPi", "_Z4goodILi2EEvPi"] * 2)
        process.wait()
    assert descendants(process.pid) == []


def test_a_script_from_standard_input_is_served() -> None:
    """It has no file, and no input left."""
    program = PROLOGUE + (
        "async def main():\n"
        "    async with Compiler('cpu', workers=1) as compiler:\n"
        "        print((await compiler.compile(GOOD, 'good<1>')).entry)\n"
        "asyncio.run(main())\n"
    )
    with server("import sys; exec(sys.stdin.read())", stdin=subprocess.PIPE) as process:
        assert process.communicate(program) == ("_Z4goodILi1EEvPi\n", "")


@pytest.mark.parametrize("how", ["ignored", "reaped by the host"])
def test_a_host_that_takes_the_statuses_of_children_is_served(
    child_environment: dict[str, str], how: str
) -> None:
    """A pre-forking master ignores SIGCHLD, or waits for every child that there is."""
    program = (
        PROLOGUE
        + """
import signal
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
else:
    def reap():
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.001)
    threading.Thread(target=reap, daemon=True).start()
async def main():
    async with asyncio.timeout(20), Compiler("cpu", workers=1) as compiler:
        try:
            await compiler.compile("nope", "k")
        except CompileError:
            print("refused")
        print((await compiler.compile(GOOD, "good<1>")).entry, await compiler.trim())
asyncio.run(main())
"""
    )
    told = printed([sys.executable, "-X", "dev", "-c", program, how], child_environment)
    assert told == ("refused\n_Z4goodILi1EEvPi 1\n", "")
