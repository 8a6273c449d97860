"""What the tests of the launcher share: specs, targets that forked workers run, and a look for leftovers."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

from tfmp.events import EventChannel, Ready, UnknownEvent, encode
from tfmp.workers.fork_client import ForkServer
from tfmp.workers.fork_group import ForkServerGroup
from tfmp.workers.group import FromWorker, Line, Tick, WorkerGroup
from tfmp.workers.lifecycle import STOP_SIGNALS, StopPolicy
from tfmp.workers.signals import SignalInbox
from tfmp.workers.spec import GroupResult, Stream, WorkerSpec

MARK = "TFMP_TEST_MARK"
PRELUDE = "import os, signal, subprocess, sys, time; i = int(os.environ['RANK'])\n"
IGNORE_TERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


class Case:
    """One test's workers: their logs, and a mark in the environment of all their descendants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex

    def log(self, rank: int = 0) -> Path:
        return self.folder / "logs" / "attempt-0" / f"worker-{rank}.log"

    def _spec(self, rank: int, **fields: Any) -> WorkerSpec:
        env = {"RANK": str(rank), MARK: self.mark, **fields.pop("env", {})}
        return WorkerSpec(rank, env, self.log(rank), **fields)

    def programs(self, code: str, count: int = 1, **fields: Any) -> list[WorkerSpec]:
        """Workers that are Python programs; ``i`` is the rank."""
        argv = (sys.executable, "-S", "-c", PRELUDE + code)
        return [self._spec(rank, argv=argv, **fields) for rank in range(count)]

    def command(self, *argv: str, **fields: Any) -> list[WorkerSpec]:
        return [self._spec(0, argv=argv, **fields)]

    def targets(self, name: str, count: int = 1, **fields: Any) -> list[WorkerSpec]:
        """Workers forked from a fork server that has imported this module."""
        return [self._spec(rank, target=f"tests.cluster.launch_support:{name}", **fields) for rank in range(count)]

    def leftovers(self) -> list[str]:
        """Return the command lines of living processes that carry the mark."""
        return list(alive_with(f"{MARK}={self.mark}").values())

    def end_leftovers(self) -> None:
        """After a test that failed: its processes would outlive it by minutes."""
        for pid in alive_with(f"{MARK}={self.mark}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def assert_nothing_left(self, within_s: float = 1.0) -> None:
        deadline_s = time.monotonic() + within_s
        while (left := self.leftovers()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert left == []


def alive_with(entry: str) -> dict[int, str]:
    """Return process ids and command lines of the living processes with this variable in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace")
    return found


def sleepers_in_other_sessions() -> None:
    """Leave two processes: one in the worker's session, and the child of a dead child in a session of its own."""
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    daemon = f"import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True)"
    subprocess.Popen(sleeper)
    subprocess.run([sys.executable, "-S", "-c", daemon], start_new_session=True, check=True)


def run_group(
    fork_server: ForkServer,
    specs: Sequence[WorkerSpec],
    *,
    on_event: Callable[[int, dict[str, Any]], None] | None = None,
    on_line: Callable[[int, Stream, str], None] | None = None,
    on_tick: Callable[[WorkerGroup], None] | None = None,
    grace_period_s: float = 10.0,
    failure_grace_s: float = 2.0,
    settle_s: float = 1.0,
    start_timeout_s: float | None = None,
    import_timeout_s: float = 600.0,
    tick_s: float = 0.25,
    inbox: SignalInbox | None = None,
) -> GroupResult:
    """Run one group on a fork server that outlives it, and tell what happens: events as they are on the wire."""
    policy = StopPolicy(grace_period_s, failure_grace_s, settle_s, start_timeout_s)
    with nullcontext(inbox) if inbox is not None else SignalInbox(STOP_SIGNALS) as signals:
        group = ForkServerGroup(lambda: fork_server, signals, policy, import_timeout_s=import_timeout_s, tick_s=tick_s)
        with closing(group.run(specs)) as happenings:
            for happening in happenings:
                match happening:
                    case FromWorker(rank, event) if on_event is not None:
                        on_event(rank, encode(event))
                    case Line(rank, stream, text) if on_line is not None:
                        on_line(rank, stream, text)
                    case Tick() if on_tick is not None:
                        on_tick(group)
        return group.result()


def run_launcher(case: Case, code: str) -> subprocess.Popen[str]:
    """Start a launcher in an interpreter of its own; ``case`` is this case there."""
    head = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tests.cluster.launch_support import *\n"
        f"case = Case(Path({str(case.folder)!r})); case.mark = {case.mark!r}\n"
    )
    env = {**os.environ, MARK: case.mark, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)}
    env.pop("PYTHONUNBUFFERED", None)
    return subprocess.Popen([sys.executable, "-c", head + code], env=env, stdout=subprocess.PIPE, text=True)


# Targets ------------------------------------------------------------------------------------------------------------


def report(payload: dict[str, Any], channel: EventChannel) -> None:
    """Tell what a forked worker finds itself in."""
    channel.send(Ready())
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    found = {
        "env": dict(os.environ),
        "cpus": sorted(os.sched_getaffinity(0)),
        "session": os.getsid(0) == os.getpid(),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "fds": sorted(_descriptors()),
        "ignored": int(fields["SigIgn"], 16),
        "blocked": int(fields["SigBlk"], 16),
        "name": fields["Name"].strip(),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
        "collects": gc.isenabled(),
        "payload_chars": len(payload.get("text", "")),
    }
    channel.send(UnknownEvent("found", found))
    print("report of", os.environ["RANK"], "é")


def _descriptors() -> Iterator[str]:
    """What this process has open. The listing's own descriptor is closed again by the time it is looked at."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            yield str(entry.readlink())


def fail(payload: dict[str, Any], channel: EventChannel) -> None:
    if chars := payload.get("chars"):
        raise LookupError(f"begin {'.' * chars} end")
    raise LookupError("no such column: label")


def mumble(payload: dict[str, Any], channel: EventChannel) -> None:
    print("no newline", end="")


def leave(payload: dict[str, Any], channel: EventChannel) -> None:
    sys.exit(payload["code"])


def die(payload: dict[str, Any], channel: EventChannel) -> None:
    """Say something without a line's end, then be killed."""
    print("step 41")
    os.write(1, b"step 42")
    os.kill(os.getpid(), payload.get("signum", signal.SIGKILL))


def ready_but_one(payload: dict[str, Any], channel: EventChannel) -> None:
    """All report ready, except one that never does."""
    if int(os.environ["RANK"]) != payload["silent"]:
        channel.send(Ready())
    time.sleep(600)


def ready_and_deaf(payload: dict[str, Any], channel: EventChannel) -> None:
    """Ready, with a stop handler that tidies up for a while."""

    def save(signum: int, frame: object) -> None:
        time.sleep(0.3)
        print("saved")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    channel.send(Ready())
    time.sleep(600)


def daemons(payload: dict[str, Any], channel: EventChannel) -> None:
    sleepers_in_other_sessions()
    channel.send(Ready())
    if payload.get("stay"):
        time.sleep(600)
    sys.exit(payload.get("code", 0))
