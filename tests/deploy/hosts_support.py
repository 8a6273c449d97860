"""What the deployment tests share: hosts on one machine (network namespaces), Debian's packages, running programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT, Done

FOLDER = Path(__file__).resolve().parent
#: ``tfmp`` as it is installed beside this Python, and this checkout.
ENV = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
INSTALL_S = 600
_NETNS = Path("/etc/netns")


def script(name: str, *arguments: object, timeout_s: float = 60) -> str:
    """Run one of the scripts beside this file; return what it prints."""
    command = [str(FOLDER / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s).stdout


def run(*command: object, env: Mapping[str, str] | None = None, timeout_s: float = 120) -> Done:
    """Run any program in the project's folder, where it finds ``tfmp``."""
    began = time.monotonic()
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **ENV, **(env or {})},
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def need(program: str, package: str) -> None:
    """Install the Debian package of a program that is missing; skips the test where that cannot be."""
    if shutil.which(program) is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"needs {program} (Debian's {package}), or root and apt-get to install it")
    for arguments in (("update",), ("install", "-y", "--no-install-recommends", package)):
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        done = run("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments, env=env, timeout_s=INSTALL_S)
        if done.code:
            pytest.skip(f"{package} cannot be installed: {done.text}")


@contextmanager
def hosts(letter: str, count: int) -> Iterator[str]:
    """Give the prefix of ``count`` hosts; skips the test where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    prefix = f"t{os.getpid() % 10000}{letter}"
    try:
        script("netns-hosts.sh", "up", prefix, count)
    except subprocess.CalledProcessError as error:
        script("netns-hosts.sh", "down", prefix)
        pytest.skip(f"no network namespaces here: {error.stderr}")
    try:
        yield prefix
    finally:
        script("netns-hosts.sh", "down", prefix)
        for folder in _NETNS.glob(f"{prefix}[0-9]*"):
            shutil.rmtree(folder)


def address(host: int, port: int = 2222) -> str:
    """The address of a host's worker."""
    return f"10.78.0.{10 + host}:{port}"


def know(prefix: str, host: int, others: Iterable[int]) -> None:
    """Let a host know others by their names, ``h0`` and so on, from now on; those that it knew before it forgets."""
    write_hosts(prefix, host, [f"10.78.0.{10 + other} h{other}" for other in others])


def ask(prefix: str, host: int, server: str) -> None:
    """Let a host ask this name server, of which nothing need be there."""
    file = _NETNS / f"{prefix}{host}" / "resolv.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"nameserver {server}\n")


def write_hosts(prefix: str, host: int, entries: Iterable[str]) -> None:
    """Let these, and loopback, be a host's ``/etc/hosts`` from now on."""
    lines = ["127.0.0.1 localhost", *entries]
    file = _NETNS / f"{prefix}{host}" / "hosts"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")  # the same file, as programs on that host have it in place of /etc/hosts


def on(prefix: str, host: int) -> tuple[str, ...]:
    """What to put in front of a command to run it on a host."""
    return ("ip", "netns", "exec", f"{prefix}{host}")
