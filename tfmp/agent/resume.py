"""``--resume``: the run to resume, its settings, and the checkpoint to resume from.

On several hosts, worker 0 names the checkpoint and the others verify it where it lies: in the run folder, which all
workers must then share (a file system, a volume).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tfmp.checkpoint.format import CheckpointHeader, DamagedCheckpointError, newest_good, peek, verify
from tfmp.config.identity import changed, identity
from tfmp.errors import TfmpError, UsageError
from tfmp.planning.task import ResumeFrom
from tfmp.rundir.layout import RunFolder, write_text
from tfmp.rundir.reader import read_summary
from tfmp.text import count, noop

if TYPE_CHECKING:
    from tfmp.config import Resolved, RunConfig

Tell = Callable[[str], None]

_FINISHED = "finished"
_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from, verified on this host.

    Attributes:
        path: The file.
        header: What it says about itself; the arrays stay in the file.
    """

    path: Path
    header: CheckpointHeader

    def to_task(self) -> ResumeFrom:
        """Return what a worker on this host is told."""
        return ResumeFrom(self.path.absolute(), self.header.digest)


@dataclass(frozen=True)
class EarlierRun:
    """What one host of several knows of the run to resume.

    Attributes:
        folder: Its own folder of that run; ``None`` if it has none.
        finished: On rank 0: epochs of a run that has nothing left to do; ``None`` if it has.
        point: On rank 0: where to resume; ``None``: from the beginning.
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
            message[_CHECKPOINT] = {"file": self.point.path.name, "sha256": self.point.header.digest}
        return message


def settings_file(run_dir: Path | None) -> Path | None:
    """The settings of the run to resume, where the command names no file: its own ``config.yaml``, if it has one.

    Raises:
        UsageError: No run folder was given.
    """
    if run_dir is None:
        runs = sorted(Path("runs").glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
        hint = f"--run-dir {runs[-1].parent} was the last" if runs else "--run-dir DIR names it"
        raise UsageError("expected a run folder to resume, received none", where="--resume", hint=hint)
    config = run_dir / "config.yaml"
    return config if config.is_file() else None


def earlier_run(folder: Path | None, wanted: bool, tell: Tell) -> RunFolder | None:
    """The run to resume in a folder, if that is wanted and there is one."""
    if not wanted or folder is None:
        return None
    if not (folder / "config.yaml").is_file():
        tell(f"nothing to resume in {folder}: a new run")
        return None
    return RunFolder(folder)


def find_earlier(resolved: Resolved, own: Path | None, *, rank: int, wanted: bool, tell: Tell) -> EarlierRun:
    """Find the run that this host of several is to resume.

    Args:
        resolved: The settings.
        own: This worker's folder; ``None`` if none was named.
        rank: Its rank. Rank 0 decides where to resume.
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
        return EarlierRun()
    check_same_run(folder, resolved)
    if rank:
        return EarlierRun(folder)
    if (epochs := finished_epochs(folder, resolved.config)) is not None:
        return EarlierRun(folder, finished=epochs)
    return EarlierRun(folder, point=choose(folder, tell))


def finished_epochs(folder: RunFolder, config: RunConfig) -> int | None:
    """The number of epochs of a run that has nothing left to do; ``None`` if it has."""
    from tfmp.config import load_run_config

    try:
        summary = read_summary(folder)
    except (OSError, ValueError):
        return None
    # Early stopping ends a run before its epochs are over: what counts is whether more are asked for than before.
    more = config.training.epochs > load_run_config(folder.config).training.epochs
    return summary.epochs if summary.status == "done" and folder.model.is_file() and not more else None


def nothing_left(folder: Path | str, epochs: int) -> str:
    """The line for a run that has nothing left to do."""
    return f"nothing left to do: {folder} finished after {count(epochs, 'epoch')}"


def check_same_run(folder: RunFolder, resolved: Resolved) -> None:
    """Refuse to resume with other settings.

    Raises:
        UsageError: A setting that decides the numbers has changed.
    """
    from tfmp.config import load_run_config

    before, now = identity(load_run_config(folder.config)), identity(resolved.config)
    if differences := changed(before, now):
        key, was, is_now = differences[0]
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UsageError(
            f"{key} decides the numbers of a run: expected {was} as when it was started, received {is_now}{more}",
            where=f"{resolved.origin(key)}, {folder.config}",
            hint="restore the earlier value, or start a new run with another --run-dir",
        )


def update_saved_config(folder: RunFolder, resolved: Resolved) -> None:
    """Make this command's settings those of the run folder."""
    text = resolved.to_yaml()
    if text != folder.config.read_text():
        write_text(folder.config, text)


def choose(folder: RunFolder, tell: Tell) -> ResumePoint | None:
    """The newest good checkpoint of a run; ``None`` if it has none. Hashes it: call this once for each start.

    Args:
        folder: The run folder.
        tell: Tells the user a line for each damaged checkpoint.
    """
    found = newest_good(folder.checkpoints, tell)
    return None if found is None else ResumePoint(*found)


def check_same_data(point: ResumePoint | None, data_sha256: str) -> None:
    """Refuse to resume on other samples than those the run was trained on.

    Args:
        point: Where the run resumes. A checkpoint of an older tfmp does not name its samples.
        data_sha256: Of the samples now.

    Raises:
        UsageError: They differ.
    """
    before = point.header.facts.get("data_sha256", data_sha256) if point else data_sha256
    if before != data_sha256:
        raise UsageError(
            f"the samples are not those that the run was trained on: expected data {before[:12]}, "
            f"received {data_sha256[:12]}",
            where="--resume",
            hint="restore the data, or start a new run without --resume",
        )


def same_collective(config: RunConfig, point: ResumePoint | None, replicas: int) -> RunConfig:
    """Let ``auto`` mean what it meant when the run began: other sums round differently.

    Args:
        config: The configuration.
        point: Where the run resumes.
        replicas: Replicas now. With another number the sums are others anyway.
    """
    from tfmp.config import choices

    if point is None or config.cluster.collective != "auto":
        return config
    facts = point.header.facts
    if facts.get("replicas") != replicas or facts.get("collective") not in get_args(choices.Collective):
        return config
    cluster = config.cluster.model_copy(update={"collective": facts["collective"]})
    return config.model_copy(update={"cluster": cluster})


def finished_message(message: Mapping[str, Any]) -> int | None:
    """The epochs of a run that has nothing left to do, as rank 0 says; ``None`` if it has."""
    epochs = message.get(_FINISHED)
    return epochs if type(epochs) is int else None


def point_from_leader(message: Mapping[str, Any], run_dir: Path | None) -> ResumePoint | None:
    """Find and verify the checkpoint that rank 0 has named.

    Args:
        message: What rank 0 told.
        run_dir: The run folder as this host names it.

    Raises:
        TfmpError: It is not there, or differs from rank 0's.
    """
    told = message.get(_CHECKPOINT)
    if not isinstance(told, dict):
        return None
    name = Path(str(told.get("file"))).name
    hint = "to resume, all workers need one --run-dir, on a file system that they share"
    if run_dir is None:
        raise TfmpError("worker 0 resumes a run: expected its run folder, received none", where="--run-dir", hint=hint)
    path = run_dir / "checkpoints" / name
    another = TfmpError("this checkpoint is not the one from which worker 0 resumes", where=str(path), hint=hint)
    try:
        # Another file is not worth hashing.
        if peek(path).digest == told.get("sha256"):
            return ResumePoint(path, verify(path))
    except DamagedCheckpointError as error:
        if not isinstance(error.__cause__, OSError):
            raise another from error
        what = f"the checkpoint from which worker 0 resumes cannot be read: {error.__cause__.strerror}"
        raise TfmpError(what, where=str(path), hint=hint) from error
    raise another
