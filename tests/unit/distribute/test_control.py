"""What workers tell each other between executions."""

from __future__ import annotations

import pytest

from tfmp.distribute import FitControl


@pytest.mark.parametrize("replicas", [2, 4096])
def test_workers_that_stopped_are_counted_beside_wishes_to_stop(replicas: int) -> None:
    going_on, asked, stopped, both = FitControl(), FitControl(), FitControl(), FitControl()
    asked.stop_wanted = both.stop_wanted = True
    assert (going_on.wishes(), asked.wishes()) == ([0.0, 0.0], [1.0, 0.0])
    for stopped_here in (0, 1, replicas - 1, replicas):
        for worker, control in ((stopped, going_on), (both, asked), (stopped, asked)):
            sums = stopped_here * worker.wishes(has_stopped=True)[0] + (replicas - stopped_here) * control.wishes()[0]
            assert FitControl.stopped_replicas(sums) == stopped_here


def test_wishes_of_any_worker_are_agreed_on() -> None:
    control = FitControl()
    control.save_wanted = True
    control.agree([0.0, 1.0])
    assert (control.stop_agreed, control.save_agreed, control.save_wanted) == (False, True, False)
    control.agree([2.0, 0.0])
    assert (control.stop_agreed, control.save_agreed) == (True, False)
