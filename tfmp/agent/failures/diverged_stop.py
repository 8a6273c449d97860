"""A worker whose callback ends the training while the others go on: they would wait for each other for ever.

Whether the others go on is seen in their stacks: they are in the next execution, not in a callback that takes long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tfmp.agent.failures.hang import main_stack

#: For the others to end the training too, before their stacks are asked for, and asked for again.
_PATIENCE_S = 3.0
#: For the workers to write down their stacks.
_STACKS_WAIT_S = 0.5
#: The bridge's function of one execution.
_EXECUTION = "train_function"


class DivergedStop:
    """Finds workers that end the training alone.

    Attributes:
        alone: Ranks of them, once they are found.
    """

    def __init__(self) -> None:
        self.alone: tuple[int, ...] = ()
        self._steps: dict[int, int] = {}
        self._since_s = 0.0
        self._asked_s: float | None = None

    @property
    def asked(self) -> bool:
        """Whether the workers were asked for their stacks."""
        return self._asked_s is not None

    def stops(self, rank: int, step: int, now_s: float) -> None:
        """A worker tells that a callback of its own ended the training after this step of the run."""
        if not self._steps:
            self._since_s = now_s
        self._steps[rank] = step

    def is_due(self, now_s: float, ranks: Collection[int]) -> bool:
        """Whether to ask the workers for their stacks now.

        Args:
            now_s: The time.
            ranks: The workers that are alive.
        """
        if self.asked or self.alone or not self._steps or set(ranks) <= set(self._steps):
            return False
        if now_s - self._since_s < _PATIENCE_S:
            return False
        self._asked_s = now_s
        return True

    def examine(self, now_s: float, dumps: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """Return the errors of the workers that ended the training alone, by rank; none if it cannot be told yet.

        Args:
            now_s: The time.
            dumps: What ``faulthandler`` wrote, by rank.
        """
        if self._asked_s is None or now_s - self._asked_s < _STACKS_WAIT_S:
            return {}
        self._asked_s, self._since_s = None, now_s
        others = sorted(
            rank
            for rank, text in dumps.items()
            if rank not in self._steps and any(frame.function == _EXECUTION for frame in main_stack(text))
        )
        if not others:
            return {}
        self.alone = tuple(sorted(self._steps))
        names = ", ".join(map(str, others))
        going_on = f"worker {names} goes on" if len(others) == 1 else f"workers {names} go on"
        return {
            rank: {
                "what": f"a callback of worker {rank} stopped the training after step {step:,}, {going_on}",
                "where": "training.callbacks",
                "hint": "decide alike on all workers: by `logs`, which are equal on all, not by the clock or the rank",
            }
            for rank, step in self._steps.items()
        }
