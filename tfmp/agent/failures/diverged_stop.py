"""A worker whose callback ends the training while the others go on: they would wait for each other for ever.

Whether the others go on is seen in their stacks: they are in the next execution, not in a callback that takes long.
"""

from __future__ import annotations

from tfmp.agent.failures.hang import STACKS_WAIT_S, main_stack
from tfmp.events import TrainingStopped, UserError, WorkerEvent
from tfmp.workers.group import WorkerGroup

#: For the others to end the training too, before their stacks are asked for, and asked for again.
_PATIENCE_S = 3.0
#: The bridge's function of one execution.
_EXECUTION = "train_function"


class DivergedStopDetector:
    """Finds workers that end the training alone.

    Attributes:
        errors: Their errors by rank, once they are found.
    """

    def __init__(self) -> None:
        self.errors: dict[int, UserError] = {}
        self._steps: dict[int, int] = {}
        self._since_s = 0.0
        self._asked_s: float | None = None

    def on_event(self, rank: int, event: WorkerEvent, now_s: float) -> None:
        """Take note of a callback that has ended the training."""
        if isinstance(event, TrainingStopped):
            if not self._steps:
                self._since_s = now_s
            self._steps[rank] = event.global_step

    def on_tick(self, group: WorkerGroup, now_s: float) -> None:
        """Ask workers that go on where they are; stop the group if some go on without the others."""
        if self._asked_s is not None:
            if now_s - self._asked_s >= STACKS_WAIT_S:
                self._asked_s, self._since_s = None, now_s
                self._examine(group)
        elif self._is_due(now_s) and not set(group.pids) <= set(self._steps):
            self._asked_s = now_s
            group.request_stacks()

    def _is_due(self, now_s: float) -> bool:
        return bool(self._steps) and not self.errors and now_s - self._since_s >= _PATIENCE_S

    def _examine(self, group: WorkerGroup) -> None:
        others = sorted(
            rank
            for rank, text in group.stacks().items()
            if rank not in self._steps and any(frame.function == _EXECUTION for frame in main_stack(text))
        )
        if not others:
            return
        names = ", ".join(map(str, others))
        going_on = f"worker {names} goes on" if len(others) == 1 else f"workers {names} go on"
        self.errors = {
            rank: UserError(
                f"a callback of worker {rank} stopped the training after step {step:,}, {going_on}",
                "training.callbacks",
                "decide alike on all workers: by `logs`, which are equal on all, not by the clock or the rank",
            )
            for rank, step in self._steps.items()
        }
        group.stop("a worker stopped training alone")
