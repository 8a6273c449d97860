"""What all tests share: running the program as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return self.out + self.err


def run_program(
    *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 180
) -> Done:
    """Run ``tfmp`` with these arguments, in the project's folder."""
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "tfmp", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=cwd or ROOT,
        timeout=timeout_s,
    )
    return Done(process.returncode, process.stdout, process.stderr, time.monotonic() - began)


@pytest.fixture(scope="session")
def tfmp() -> Callable[..., Done]:
    """The program, as a function of its arguments."""
    return run_program


@dataclass(frozen=True)
class Run:
    """A finished training and its folder."""

    done: Done
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def log(self, rank: int, attempt: int = 0) -> str:
        return (self.folder / "logs" / f"attempt-{attempt}" / f"worker-{rank}.log").read_text()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Train with these arguments; the same arguments give the same, shared run."""
    runs: dict[tuple[str, ...], Run] = {}

    def train(*arguments: object, again: int = 0, ok: bool = True, env: Mapping[str, str] | None = None) -> Run:
        key = (*map(str, arguments), str(again), repr(sorted((env or {}).items())))
        if key not in runs:
            folder = tmp_path_factory.mktemp("run") / "run"
            done = run_program("train", *arguments, "--run-dir", folder, env=env)
            runs[key] = Run(done, folder)
        if ok:
            assert runs[key].done.code == 0, runs[key].done.text
        return runs[key]

    return train
