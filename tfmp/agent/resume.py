"""``--resume``: which run goes on, with which settings, and from which checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tfmp.checkpoint.format import Checkpoint, newest_good
from tfmp.config.identity import changed, identity
from tfmp.errors import UsageError
from tfmp.rundir.layout import RunFolder, write_text
from tfmp.rundir.reader import read_summary
from tfmp.text import count

if TYPE_CHECKING:
    from tfmp.config import Resolved, RunConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on.

    Attributes:
        path: The checkpoint file.
        checkpoint: Its content.
    """

    path: Path
    checkpoint: Checkpoint


def settings_file(run_dir: Path | None) -> Path | None:
    """The settings of a run that is to go on, where the command names no file: its own ``config.yaml``, if it has one.

    Raises:
        UsageError: No run folder was given.
    """
    if run_dir is None:
        runs = sorted(Path("runs").glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
        hint = f"--run-dir {runs[-1].parent} was the last" if runs else "--run-dir DIR names it"
        raise UsageError("expected a run folder to resume, received none", where="--resume", hint=hint)
    config = run_dir / "config.yaml"
    return config if config.is_file() else None


def finished_epochs(folder: RunFolder, config: RunConfig) -> int | None:
    """The number of epochs of a run that has nothing left to do; ``None`` if there is something."""
    from tfmp.config import load_run_config

    try:
        summary = read_summary(folder)
    except (OSError, ValueError):
        return None
    # Early stopping ends a run before its epochs are over: what counts is whether more are asked for than before.
    more = config.training.epochs > load_run_config(folder.config).training.epochs
    return summary.epochs if summary.status == "done" and folder.model.is_file() and not more else None


def earlier_run(folder: Path | None, wanted: bool, say: Say) -> RunFolder | None:
    """The run that is to go on in a folder, if it is wanted and there is one."""
    if not wanted or folder is None:
        return None
    if not (folder / "config.yaml").is_file():
        say(f"nothing to resume in {folder}: a new run")
        return None
    return RunFolder(folder)


def nothing_left(folder: Path | str, epochs: int) -> str:
    """What is said of a run that has nothing left to do."""
    return f"nothing left to do: {folder} has ended well after {count(epochs, 'epoch')}"


def check_same_run(folder: RunFolder, resolved: Resolved) -> None:
    """Refuse to go on with other settings.

    Raises:
        UsageError: A setting that decides the numbers is not what it was.
    """
    from tfmp.config import load_run_config

    before, now = identity(load_run_config(folder.config)), identity(resolved.config)
    if differences := changed(before, now):
        key, was, is_now = differences[0]
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UsageError(
            f"{key} decides the numbers of a run: expected {was} as when it was started, received {is_now}{more}",
            where=f"{resolved.origin(key)}, {folder.config}",
            hint="leave it as it was, or start a new run with another --run-dir",
        )


def update_saved_config(folder: RunFolder, resolved: Resolved) -> None:
    """Make the settings of this command those of the run folder."""
    text = resolved.to_yaml()
    if text != folder.config.read_text():
        write_text(folder.config, text)


def choose(folder: RunFolder, say: Say) -> ResumePoint | None:
    """The newest good checkpoint of a run; ``None`` if it has none."""
    found = newest_good(folder.checkpoints, say)
    return None if found is None else ResumePoint(*found)


def same_collective(config: RunConfig, point: ResumePoint | None, replicas: int) -> RunConfig:
    """Let ``auto`` mean what it meant when the run began: other sums round differently.

    Args:
        config: The configuration.
        point: Where the run goes on.
        replicas: Replicas now. With another number the sums are others anyway.
    """
    from tfmp.config import choices

    if point is None or config.cluster.collective != "auto":
        return config
    facts = point.checkpoint.facts
    if facts.get("replicas") != replicas or facts.get("collective") not in get_args(choices.Collective):
        return config
    cluster = config.cluster.model_copy(update={"collective": facts["collective"]})
    return config.model_copy(update={"cluster": cluster})
