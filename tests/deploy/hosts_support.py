"""Hosts on one machine for the deployment tests: network namespaces on a switch of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


def script(name: str, *arguments: object, timeout_s: float = 60) -> str:
    """Run one of the scripts beside this file; return what it prints."""
    command = [str(FOLDER / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s).stdout


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


def address(host: int, port: int = 2222) -> str:
    """The address of a host's worker."""
    return f"10.78.0.{10 + host}:{port}"


def on(prefix: str, host: int) -> tuple[str, ...]:
    """What to put in front of a command to run it on a host."""
    return ("ip", "netns", "exec", f"{prefix}{host}")
