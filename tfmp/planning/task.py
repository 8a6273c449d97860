"""What a worker is told: made by the launcher, read by the worker, encoded and decoded here alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfmp.planning.collective import Collective
from tfmp.planning.layout import Layout

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig
    from tfmp.planning.batches import Compiled
    from tfmp.planning.host import Device
    from tfmp.planning.plan import Plan


@dataclass(frozen=True)
class ShmJoin:
    """Where a worker joins those of its host that it shares memory with, and as which of them.

    Attributes:
        directory: A folder on this host, mode 0700.
        token: A secret of the run, hex.
        rank: This worker's number among the workers on its host.
        size: How many they are.
        hosts: Number of hosts.
    """

    directory: Path
    token: str
    rank: int
    size: int
    hosts: int


@dataclass(frozen=True)
class ResumeFrom:
    """A checkpoint to resume from, verified on this host.

    Attributes:
        path: Its file.
        digest: Its SHA-256, hex.
    """

    path: Path
    digest: str


@dataclass(frozen=True)
class WorkerTask:
    """One worker's part of one attempt.

    Attributes:
        config: The configuration, without its secret.
        run_dir: The run folder.
        data_header: Header file of the decoded data set on this machine.
        rank: This worker's rank.
        layout: The replicas.
        device: What they compute on.
        collective: How gradients are summed over workers.
        compiled: Which parts of the step are compiled with XLA.
        steps_per_epoch: Optimizer steps of an epoch.
        steps_per_execution: Steps of one call of the train function.
        shm: Where the workers of this host join to share memory; ``None`` if they do not.
        resume: Checkpoint to resume from; ``None``: from the start.
        faults: Faults to inject (see :mod:`tfmp.agent.failures.injection`).
        record: Folder in which to keep the variables after each step; ``None``: they are not kept.
    """

    config: RunConfig
    run_dir: Path
    data_header: Path
    rank: int
    layout: Layout
    device: Device
    collective: Collective
    compiled: Compiled
    steps_per_epoch: int
    steps_per_execution: int
    shm: ShmJoin | None = None
    resume: ResumeFrom | None = None
    faults: tuple[dict[str, Any], ...] = ()
    record: Path | None = None

    @classmethod
    def planned(
        cls,
        config: RunConfig,
        plan: Plan,
        rank: int,
        run_dir: Path,
        data_header: Path,
        *,
        shm: ShmJoin | None = None,
        resume: ResumeFrom | None = None,
        faults: tuple[dict[str, Any], ...] = (),
        record: Path | None = None,
    ) -> WorkerTask:
        """Return the task of a plan's worker; arguments as the attributes of the class."""
        # The launchers' secret is none of the worker's business, in which the user's own code runs.
        cluster = config.cluster.model_copy(update={"token": None})
        return cls(
            config=config.model_copy(update={"cluster": cluster}),
            run_dir=run_dir,
            data_header=data_header,
            rank=rank,
            layout=plan.layout,
            device=plan.device,
            collective=plan.collective,
            compiled=plan.compiled,
            steps_per_epoch=plan.batch.steps_per_epoch,
            steps_per_execution=plan.batch.steps_per_execution,
            shm=shm,
            resume=resume,
            faults=faults,
            record=record,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            **vars(self),
            "config": self.config.model_dump(mode="json"),
            "run_dir": str(self.run_dir),
            "data_header": str(self.data_header),
            "layout": asdict(self.layout),
            "shm": {**asdict(self.shm), "directory": str(self.shm.directory)} if self.shm else None,
            "resume": {"path": str(self.resume.path), "digest": self.resume.digest} if self.resume else None,
            "record": str(self.record) if self.record else None,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WorkerTask:
        """Return what :meth:`to_json` was made of."""
        from tfmp.config.schema import RunConfig

        shm, resume = values["shm"], values["resume"]
        return cls(
            **{
                **values,
                "config": RunConfig.model_validate(values["config"]),
                "run_dir": Path(values["run_dir"]),
                "data_header": Path(values["data_header"]),
                "layout": Layout(**values["layout"]),
                "collective": Collective(*values["collective"]),
                "shm": ShmJoin(**{**shm, "directory": Path(shm["directory"])}) if shm else None,
                "resume": ResumeFrom(Path(resume["path"]), resume["digest"]) if resume else None,
                "faults": tuple(values["faults"]),
                "record": Path(values["record"]) if values["record"] else None,
            }
        )
