"""Going on with a run of several hosts: worker 0 finds the run and says from where; the others read that checkpoint.

The checkpoint is read where it lies, in the run folder, which all workers must then share (a file system, a volume).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.agent.resume import ResumePoint, check_same_run, choose, earlier_run, finished_epochs
from tfmp.checkpoint.format import load_checkpoint
from tfmp.errors import TfmpError, UsageError
from tfmp.rundir.layout import RunFolder
from tfmp.text import noop

if TYPE_CHECKING:
    from tfmp.config import Resolved

_FINISHED = "finished"
_CHECKPOINT = "checkpoint"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class GoingOn:
    """What one worker knows of a run that goes on.

    Attributes:
        folder: Its own folder of that run; ``None`` where it has none.
        finished: Rank 0: epochs of a run that has nothing left to do; ``None`` where it has.
        point: Rank 0: where the run goes on; ``None``: from the beginning.
    """

    folder: RunFolder | None = None
    finished: int | None = None
    point: ResumePoint | None = None

    def to_message(self) -> dict[str, Any]:
        """Return what rank 0 tells the others, as JSON values."""
        message: dict[str, Any] = {}
        if self.finished is not None:
            message[_FINISHED] = self.finished
        if self.point is not None:
            message[_CHECKPOINT] = {"file": self.point.path.name, "sha256": _digest(self.point.path)}
        return message


def find_earlier(
    resolved: Resolved, own: Path | None, *, rank: int, wanted: bool, tell: Callable[[str], None]
) -> GoingOn:
    """Find the run that this worker is to go on with.

    Args:
        resolved: The settings.
        own: This worker's folder; ``None`` where none was named.
        rank: Its rank. Rank 0 decides where the run goes on.
        wanted: ``--resume``.
        tell: Tells the user a line.

    Raises:
        UsageError: No folder was named, or the run has other settings.
    """
    if wanted and own is None:
        raise UsageError(
            "expected a run folder to resume, received none", where="--resume", hint="--run-dir DIR names it"
        )
    folder = earlier_run(own, wanted, tell if rank == 0 else noop)
    if folder is None:
        return GoingOn()
    check_same_run(folder, resolved)
    if rank:
        return GoingOn(folder)
    if (epochs := finished_epochs(folder, resolved.config)) is not None:
        return GoingOn(folder, finished=epochs)
    return GoingOn(folder, point=choose(folder, tell))


def finished_message(message: Mapping[str, Any]) -> int | None:
    """The epochs of a run that has nothing left to do, as rank 0 says; ``None`` where it goes on."""
    epochs = message.get(_FINISHED)
    return epochs if type(epochs) is int else None


def point_from_leader(message: Mapping[str, Any], run_dir: Path | None) -> ResumePoint | None:
    """Find the checkpoint that rank 0 has named.

    Args:
        message: What rank 0 told.
        run_dir: The run folder as this host names it.

    Raises:
        TfmpError: It is not there, or another one than rank 0's.
    """
    told = message.get(_CHECKPOINT)
    if not isinstance(told, dict):
        return None
    name = Path(str(told.get("file"))).name
    hint = "to resume, all workers need one --run-dir, on a file system that they share"
    if run_dir is None:
        raise TfmpError("worker 0 resumes a run: expected its run folder, received none", where="--run-dir", hint=hint)
    path = run_dir / "checkpoints" / name
    try:
        digest = _digest(path)
    except OSError as error:
        what = f"the checkpoint from which worker 0 resumes cannot be read: {error.strerror}"
        raise TfmpError(what, where=str(path), hint=hint) from error
    if digest != told.get("sha256"):
        raise TfmpError("this checkpoint is not the one from which worker 0 resumes", where=str(path), hint=hint)
    return ResumePoint(path, load_checkpoint(path))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
