"""What the tests of ``tfmp worker`` share: several launchers on this machine, as if each were on a host of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.conftest import ROOT

SHORT = ("configs/smoke.yaml", "--set", "training.steps_per_epoch=4", "--set", "data.limit_validation=100")
LONG = ("configs/smoke.yaml", "--epochs", "5000", "--set", "run.checkpoints=no", "--set", "run.tensorboard=no")


def free_ports(count: int) -> list[int]:
    """Ports that were free just now, below those that the system gives to outgoing connections."""
    found: list[int] = []
    candidate = 20000 + os.getpid() % 5000
    while len(found) < count:
        candidate += 1
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                sock.bind(("127.0.0.1", candidate))
                found.append(candidate)
    return found


class Launcher:
    """One ``tfmp worker`` in the background."""

    def __init__(
        self,
        folder: Path,
        name: str,
        arguments: Sequence[object],
        env: Mapping[str, str],
        before: Sequence[str],
        shared: Path | None,
    ) -> None:
        self.out = folder / f"{name}-{time.monotonic_ns()}.txt"
        self.folder = shared or folder / name
        self.began_s = time.monotonic()
        with self.out.open("wb") as file:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "tfmp", "worker", *map(str, arguments), "--run-dir", str(self.folder)],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def wait(self, timeout_s: float = 60.0) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s:\n{self.text}") from None

    def until(self, what: Callable[[str], bool] | str, timeout_s: float = 60.0) -> str:
        """Wait until the output holds a text, or fulfils a condition; return the output."""
        met = what if callable(what) else (lambda text: what in text)
        deadline_s = time.monotonic() + timeout_s
        while not met(self.text):
            assert time.monotonic() < deadline_s, f"waited in vain for {what}:\n{self.text}"
            assert self.process.poll() is None or met(self.text), f"ended before {what}:\n{self.text}"
            time.sleep(0.05)
        return self.text

    def worker_pid(self) -> int:
        """The process that trains: found by its name below the launcher."""
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
                helper = Path(f"/proc/{fields['PPid'].strip()}/stat").read_text().rpartition(")")[2].split()[1]
                if fields["Name"].startswith("tfmp-worker-") and int(helper) == self.process.pid:
                    return int(status.parent.name)
        raise AssertionError(f"no worker process:\n{self.text}")

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)


@contextmanager
def launchers(folder: Path) -> Iterator[Callable[..., Launcher]]:
    """Give a function that starts one; all are ended at the end."""
    started: list[Launcher] = []

    def start(
        name: str,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        shared: Path | None = None,
    ) -> Launcher:
        started.append(Launcher(folder, name, arguments, env or {}, before, shared))
        return started[-1]

    try:
        yield start
    finally:
        for launcher in started:
            launcher.end()
