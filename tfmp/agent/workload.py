"""What the workers of a training run: from a plan, a run folder and a checkpoint to the workers of one attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfmp.agent import resume
from tfmp.agent.controller import Attempt, Workload
from tfmp.agent.failures.diagnosis import Setting
from tfmp.agent.monitor import Watch
from tfmp.agent.shm_setup import ShmSetup, local_shm_setup
from tfmp.planning.task import WorkerTask
from tfmp.rundir.temporary import temporary_folder
from tfmp.text import noop
from tfmp.workers.lifecycle import StopPolicy
from tfmp.workers.spec import WorkerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tfmp.agent.failures.injection import Fault
    from tfmp.agent.resume import ResumePoint
    from tfmp.config import RunConfig
    from tfmp.data.cache import CachedDataset
    from tfmp.planning.plan import Plan
    from tfmp.rundir.layout import RunFolder
    from tfmp.workers.ports import HeldPorts

#: What the fork server imports once for all workers.
PRELOAD = ("tensorflow", "keras", "tfmp.trainer.preload")
#: For peers of a failed worker to report failures of their own, and to end. Nothing is saved after a failure, and a
#: peer that waits in a collective does not hear SIGTERM.
_SETTLE_S = 0.4
_FAILURE_GRACE_S = 0.2


def training_stop_policy(config: RunConfig) -> StopPolicy:
    """How long the workers of a training may take for what."""
    return StopPolicy(
        grace_period_s=config.run.grace_period_s,
        failure_grace_s=_FAILURE_GRACE_S,
        settle_s=_SETTLE_S,
        start_timeout_s=config.cluster.start_timeout_s,
    )


@dataclass(frozen=True)
class TrainingAttempt(Attempt):
    """One start of the local workers of a training.

    Attributes:
        plan: The run, with the ports of this attempt.
        from_step: Steps of the run that are done.
        history: The results of the epochs that are done.
    """

    plan: Plan
    from_step: int
    history: Sequence[Mapping[str, Any]]


class TrainingWorkload(Workload):
    """The local workers of a training.

    Args:
        config: The configuration.
        plan: The run, without ports where each attempt gets its own.
        folder: The run folder. Without rank 0 among the local workers it gets their logs and events only.
        dataset: The prepared data.
        hold_ports: Holds ports for one attempt; gives ``None`` where the workers need none.
        ports: Those of the first attempt, held already.
        faults: To inject, in the first attempt.
        point: Where the run goes on; ``None``: from the beginning.
        record: Folder in which the chief keeps the variables after each step; ``None``: they are not kept.
        shm_setup: Where workers join to share memory, if some have another launcher; ``None``: a folder of their own.
        tell: Tells the user a line.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        folder: RunFolder,
        dataset: CachedDataset,
        *,
        hold_ports: Callable[[], AbstractContextManager[HeldPorts | None]] = nullcontext,
        ports: HeldPorts | None = None,
        faults: Sequence[Fault] = (),
        point: ResumePoint | None = None,
        shm_setup: ShmSetup | None = None,
        record: Path | None = None,
        tell: Callable[[str], None],
    ) -> None:
        self._config = config
        self._plan = plan
        self._folder = folder
        self._dataset = dataset
        self._hold_ports = hold_ports
        self._first_ports = ports
        self._faults = faults
        self._point = point
        self._shm_setup = shm_setup
        self._record = record
        self._tell = tell

    def check(self) -> None:
        """See :class:`tfmp.agent.controller.Workload`."""
        self._folder.require()

    def rewind(self) -> int:
        """See :class:`tfmp.agent.controller.Workload`."""
        self._point = resume.choose(self._folder, self._tell)
        return self._point.header.global_step if self._point else 0

    @contextmanager
    def attempt(self) -> Iterator[TrainingAttempt]:
        """See :class:`tfmp.agent.controller.Workload`."""
        config, folder, point = self._config, self._folder, self._point
        number = folder.next_attempt()
        folder.failure.unlink(missing_ok=True)  # of the attempt before: this one has not failed
        faults, self._faults = self._faults, ()
        with ExitStack() as stack:
            ports, self._first_ports = self._first_ports, None
            if ports is None:
                ports = stack.enter_context(self._hold_ports())
            temporary = stack.enter_context(temporary_folder())
            plan = self._plan.with_ports(ports.ports) if ports else self._plan
            try:
                yield TrainingAttempt(
                    number=number,
                    specs=self._specs(plan, number, temporary, faults),
                    watch=Watch(
                        tuple(worker.rank for worker in plan.workers if worker.local),
                        Setting({worker.rank: worker.address for worker in plan.workers}, plan.batch.steps_per_epoch),
                        config.run.hang_timeout_s,
                        config.cluster.start_timeout_s,
                    ),
                    on_ready=ports.release if ports else noop,  # every worker has its own port by then
                    plan=plan,
                    from_step=point.header.global_step if point else 0,
                    history=point.header.facts["history"] if point and plan.workers[0].local else (),
                )
            finally:
                folder.remove_temporaries()

    def _specs(self, plan: Plan, number: int, temporary: Path, faults: Sequence[Fault]) -> list[WorkerSpec]:
        shm = self._shm_setup or local_shm_setup(temporary, plan)
        return [
            WorkerSpec(
                rank=worker.rank,
                env={**worker.env, "TMPDIR": str(temporary)},
                unset=worker.unset,
                log_path=self._folder.log(number, worker.rank),
                target="tfmp.trainer.worker:main",
                payload=WorkerTask.planned(
                    self._config,
                    plan,
                    worker.rank,
                    self._folder.path.absolute(),
                    self._dataset.path,
                    shm=shm.join(worker.rank, plan) if shm else None,
                    resume=self._point.to_task() if self._point else None,
                    faults=tuple(fault.to_json() for fault in faults if fault.rank == worker.rank),
                    record=self._record,
                ).to_json(),
                cpus=worker.cpus,
            )
            for worker in plan.workers
            if worker.local
        ]


class SingleWorkerWorkload(Workload):
    """One worker, which is not started again.

    Args:
        spec: The worker.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """See :class:`tfmp.agent.controller.Workload`."""
        yield Attempt(0, [self._spec], Watch((self._spec.rank,)), noop)
