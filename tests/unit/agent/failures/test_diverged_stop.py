"""A worker that ends the training while the others go on."""

from __future__ import annotations

from typing import Any

from tests.unit.agent.failures.asked_group import AskedGroup
from tfmp.agent.failures.diverged_stop import DivergedStopDetector
from tfmp.events import Progress, TrainingStopped, UserError


def dump(*functions: str) -> str:
    """What faulthandler writes of a main thread, innermost call first."""
    frames = [f'  File "/x/{name}.py", line 7 in {name}' for name in functions]
    return "\n".join(["Current thread 0x00007f (most recent call first):", *frames]) + "\n"


IN_AN_EXECUTION = dump("quick_execute", "train_function", "fit", "main")
IN_A_CALLBACK = dump("upload", "on_train_batch_end", "fit", "main")
LEAVING = dump("quick_execute", "meet", "main")


def group(ranks: int) -> Any:
    return AskedGroup(ranks)


def test_a_worker_that_stops_alone_is_found_by_where_the_others_are() -> None:
    detector, workers = DivergedStopDetector(), group(3)
    detector.on_tick(workers, 100.0)
    detector.on_event(0, Progress(1, 14), 100.0)
    assert workers.requests == 0, "nobody has stopped"
    detector.on_event(1, TrainingStopped(14), 100.0)
    detector.on_tick(workers, 102.9)
    assert workers.requests == 0
    detector.on_tick(workers, 103.0)
    assert workers.requests == 1
    detector.on_tick(workers, 103.1)
    assert workers.requests == 1, "asked already"
    workers.answers = {0: IN_AN_EXECUTION, 1: LEAVING, 2: IN_AN_EXECUTION}
    detector.on_tick(workers, 103.4)
    assert (detector.errors, workers.stopped) == ({}, []), "they are still writing"
    detector.on_tick(workers, 103.5)
    assert detector.errors == {
        1: UserError(
            "a callback of worker 1 stopped the training after step 14, workers 0, 2 go on",
            "training.callbacks",
            "decide alike on all workers: by `logs`, which are equal on all, not by the clock or the rank",
        )
    }
    assert workers.stopped == ["a worker stopped training alone"]
    detector.on_tick(workers, 200.0)
    assert (workers.requests, len(workers.stopped)) == (1, 1), "found once"


def test_one_worker_alone_goes_on_too() -> None:
    detector, workers = DivergedStopDetector(), group(3)
    for rank in (0, 2):
        detector.on_event(rank, TrainingStopped(1400), 0.0)
    detector.on_tick(workers, 3.0)
    workers.answers = {0: LEAVING, 1: IN_AN_EXECUTION, 2: LEAVING}
    detector.on_tick(workers, 3.5)
    assert {rank: error.what for rank, error in detector.errors.items()} == {
        rank: f"a callback of worker {rank} stopped the training after step 1,400, worker 1 goes on" for rank in (0, 2)
    }


def test_a_slow_callback_of_another_worker_is_waited_for() -> None:
    detector, workers = DivergedStopDetector(), group(2)
    detector.on_event(0, TrainingStopped(14), 0.0)
    detector.on_tick(workers, 3.0)
    workers.answers = {0: LEAVING, 1: IN_A_CALLBACK}
    detector.on_tick(workers, 3.5)
    detector.on_tick(workers, 6.4)
    assert (detector.errors, workers.requests) == ({}, 1)
    detector.on_tick(workers, 6.5)
    assert workers.requests == 2, "and asked again"
    detector.on_event(1, TrainingStopped(14), 6.6)
    workers.answers = {0: LEAVING, 1: LEAVING}
    detector.on_tick(workers, 7.0)
    detector.on_tick(workers, 100.0)
    assert (detector.errors, workers.requests, workers.stopped) == ({}, 2, [])


def test_all_that_stop_alike_are_left_alone() -> None:
    detector, workers = DivergedStopDetector(), group(3)
    for rank in range(3):
        detector.on_event(rank, TrainingStopped(20), 5.0)
    detector.on_tick(workers, 100.0)
    workers.pids = {2: 102}
    detector.on_tick(workers, 100.0)
    assert workers.requests == 0
