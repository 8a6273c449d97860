"""A worker that ends the training while the others go on."""

from __future__ import annotations

from tfmp.agent.failures.diverged_stop import DivergedStop


def dump(*functions: str) -> str:
    """What faulthandler writes of a main thread, innermost call first."""
    frames = [f'  File "/x/{name}.py", line 7 in {name}' for name in functions]
    return "\n".join(["Current thread 0x00007f (most recent call first):", *frames]) + "\n"


IN_AN_EXECUTION = dump("quick_execute", "train_function", "fit", "main")
IN_A_CALLBACK = dump("upload", "on_train_batch_end", "fit", "main")
LEAVING = dump("quick_execute", "meet", "main")


def test_a_worker_that_stops_alone_is_found_by_where_the_others_are() -> None:
    parting = DivergedStop()
    assert not parting.is_due(100.0, (0, 1, 2)), "nobody has stopped"
    parting.stops(1, 14, 100.0)
    assert not parting.is_due(102.9, (0, 1, 2))
    assert parting.is_due(103.0, (0, 1, 2))
    assert not parting.is_due(103.1, (0, 1, 2)), "asked already"
    dumps = {0: IN_AN_EXECUTION, 1: LEAVING, 2: IN_AN_EXECUTION}
    assert parting.examine(103.4, dumps) == {}, "they are still writing"
    error = parting.examine(103.5, dumps)
    assert list(error) == [1]
    assert error[1]["what"] == "a callback of worker 1 stopped the training after step 14, workers 0, 2 go on"
    assert parting.alone == (1,)
    assert not parting.is_due(200.0, (0, 1, 2)), "found once"


def test_a_slow_callback_of_another_worker_is_waited_for() -> None:
    parting = DivergedStop()
    parting.stops(0, 14, 0.0)
    assert parting.is_due(3.0, (0, 1))
    assert parting.examine(3.5, {0: LEAVING, 1: IN_A_CALLBACK}) == {}
    assert parting.alone == ()
    assert not parting.is_due(6.4, (0, 1))
    assert parting.is_due(6.5, (0, 1)), "and asked again"
    parting.stops(1, 14, 6.6)
    assert parting.examine(7.0, {0: LEAVING, 1: LEAVING}) == {}
    assert not parting.is_due(100.0, (0, 1))


def test_all_that_stop_alike_are_left_alone() -> None:
    parting = DivergedStop()
    for rank in range(3):
        parting.stops(rank, 20, 5.0)
    assert not parting.is_due(100.0, (0, 1, 2))
    assert not parting.is_due(100.0, (2,))
