"""What the tests of containers share: an engine, the image, groups of containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, run_program
from tfmp import __version__

IMAGE = f"tfmp:{__version__}"
_SCRIPT = ROOT / "tests" / "deploy" / "start-docker.sh"
#: Debian's own client comes first: another one may lack what builds images.
_ENV = {**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}", "DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}


def run(*command: object, timeout_s: float = 120, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; output and errors together."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_ENV,
        timeout=timeout_s,
    )
    assert not ok or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}"
    return done


def docker(*arguments: object, ok: bool = True, timeout_s: float = 120) -> str:
    """Run docker; return what it printed."""
    return run("docker", *arguments, ok=ok, timeout_s=timeout_s).stdout


def start_engine() -> str | None:
    """Have an engine and the base image, started and made where they are missing; return why that cannot be."""
    if shutil.which("docker", path=_ENV["PATH"]) and run("docker", "info", ok=False).returncode == 0:
        base = os.environ.get("BASE_IMAGE", "python:3.11-slim")
        if run("docker", "image", "inspect", base, ok=False).returncode == 0:
            return None
    if os.environ.get("DOCKER_HOST"):
        return f"no container engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "no container engine answers, and only root on a Debian machine can start one"
    try:
        done = run(_SCRIPT, ok=False, timeout_s=400)
    except subprocess.TimeoutExpired:
        return f"no container engine within 400 s: {_SCRIPT.name}"
    if done.returncode == 0:
        return None
    return f"no container engine can be started here: {' '.join(done.stdout.split()[-40:])}"


def compose_commands() -> list[list[str]]:
    """Every Compose that is here: the engine's own (v2), docker-compose, and one that TFMP_TEST_COMPOSE names."""
    candidates = [["docker", "compose"], ["docker-compose"]]
    if named := os.environ.get("TFMP_TEST_COMPOSE"):
        candidates.insert(0, [named])
    return [
        one
        for one in candidates
        if shutil.which(one[0], path=_ENV["PATH"]) and not run(*one, "version", ok=False).returncode
    ]


@dataclass(frozen=True)
class Image:
    """The image that the tests built.

    Attributes:
        name: Its name.
        seconds: How long the build took, layers of earlier builds taken as they are.
        log: What the build printed.
    """

    name: str
    seconds: float
    log: str

    def inspect(self) -> dict[str, Any]:
        """What the engine knows of it."""
        return json.loads(docker("image", "inspect", self.name))[0]


def build_image() -> Image:
    """Build the image as docs/deploy.md says."""
    base = ["--build-arg", f"BASE_IMAGE={os.environ['BASE_IMAGE']}"] if "BASE_IMAGE" in os.environ else []
    began = time.monotonic()
    done = run("docker", "build", "-t", IMAGE, "-f", ROOT / "docker" / "Dockerfile", *base, ROOT, timeout_s=900)
    return Image(IMAGE, time.monotonic() - began, done.stdout)


class Group:
    """The containers of one Compose file, in a project of their own."""

    def __init__(self, compose: Sequence[str], file: Path, project: str, workers: int) -> None:
        self.names = [f"worker-{rank}" for rank in range(workers)]
        self.project = project
        self._compose = [*compose, "-p", project, "-f", file]

    @classmethod
    def generated(cls, folder: Path, project: str, config: str, workers: int, *sets: str) -> Group:
        """A group as ``tfmp generate compose`` writes it."""
        file = folder / f"{project}.yaml"
        options = [word for text in sets for word in ("--set", text)]
        done = run_program(
            "generate", "compose", ROOT / config, "--workers", workers, *options, "--output", file, "--force"
        )
        assert done.code == 0, done.text
        return cls(compose_commands()[0], file, project, workers)

    def __call__(self, *arguments: object, ok: bool = True, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
        """Run Compose."""
        return run(*self._compose, *arguments, ok=ok, timeout_s=timeout_s)

    def id(self, name: str) -> str:
        """A service's container."""
        found = docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={self.project}",
                       "--filter", f"label=com.docker.compose.service={name}").split()  # fmt: skip
        assert len(found) == 1, (name, found)
        return found[0]

    def state(self, name: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        return json.loads(docker("inspect", self.id(name)))[0]

    def codes(self, timeout_s: float = 180) -> list[int]:
        """Wait for all to end; return their exit codes."""
        return [int(docker("wait", self.id(name), timeout_s=timeout_s)) for name in self.names]

    def log(self, name: str) -> str:
        """All that a service has printed."""
        return docker("logs", self.id(name))

    def logs(self) -> str:
        """The same of all, for a failed assertion."""
        return "\n".join(f"--- {name}\n{self.log(name)}" for name in self.names)

    def until(self, what: Callable[[], bool], timeout_s: float = 120) -> float:
        """Wait until something holds; return how long that took."""
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < timeout_s, f"waited in vain for {timeout_s} s\n{self.logs()}"
            time.sleep(0.2)
        return time.monotonic() - began

    def read(self, path: str) -> str:
        """A file of the run volume."""
        return docker("run", "--rm", "-v", f"{self.project}_runs:/runs", "--entrypoint", "cat", IMAGE, path)

    def pid(self, name: str) -> int:
        """Process 1 of a service's container, as the host numbers it."""
        return int(self.state(name)["State"]["Pid"])

    def down(self) -> None:
        """Remove all."""
        for name in self.names:  # a stopped worker hears no SIGTERM
            with suppress(OSError, AssertionError, ValueError):
                for pid in descendants(self.pid(name)):
                    os.kill(pid, signal.SIGCONT)
        self("down", "-v", "-t", "1", ok=False)


def descendants(pid: int) -> list[int]:
    """The processes below one, as the host numbers them, itself left out."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            parents.setdefault(int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    found, todo = [], [pid] if pid else []
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def named(pids: Sequence[int], name: str) -> list[int]:
    """Those of the processes whose name begins so."""
    found = []
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                found.append(pid)
    return found


def zombies(pids: Sequence[int]) -> list[int]:
    """Those of the processes that have ended and were not waited for."""
    found = []
    for pid in pids:
        with suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z":
                found.append(pid)
    return found
