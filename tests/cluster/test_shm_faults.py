"""Deaths, delays and disagreements: every rank learns of them, soon, and by the right name."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from tests.cluster.shm_support import KINDS, Ranks, meet
from tfmp.distribute.shm import GroupError, PeerLost, SharedMemoryGroup

NOTICED_WITHIN_S = 0.5


def sum_for_ever(group: SharedMemoryGroup) -> None:
    ones = np.ones(1000)
    while True:
        assert group.all_reduce(ones)[-1] == group.size


class Flag:
    """Told by a rank just before it waits, as far as a test can know."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def up(self) -> None:
        os.write(self._write_end, b".")

    def wait(self) -> None:
        os.read(self._read_end, 1)
        time.sleep(0.03)
        os.close(self._read_end)
        os.close(self._write_end)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_named_by_all_others(tmp_path: Path, size: int, kind: str) -> None:
    victim = size // 2
    with Ranks(tmp_path, size, sum_for_ever, kind=kind) as ranks:
        time.sleep(0.05 + random.random() / 50)
        killed_s = ranks.send(victim, signal.SIGKILL)
        for rank in set(range(size)) - {victim}:
            outcome = ranks.outcome(rank)
            assert (outcome.error, outcome.ranks) == ("PeerLost", (victim,)), outcome.what
            assert outcome.at_s - killed_s < NOTICED_WITHIN_S
            assert f"rank {victim} (process {ranks.pids[victim]}) is gone" in outcome.what


@pytest.mark.parametrize("kind", KINDS)
def test_the_culprit_is_named_and_not_a_rank_that_left_because_of_it(tmp_path: Path, kind: str) -> None:
    """Rank 1 comes to the collective when rank 0 has already left because of rank 2."""
    flag = Flag()

    def body(group: SharedMemoryGroup) -> None:
        if group.rank == 0:
            flag.up()
        else:
            signal.sigwait({signal.SIGUSR1})
        group.all_reduce(np.ones(3))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Ranks(tmp_path, 3, body, kind=kind) as ranks:
            flag.wait()
            ranks.send(2, signal.SIGKILL)
            assert ranks.outcome(0).ranks == (2,)
            ranks.send(1, signal.SIGUSR1)
            assert ranks.outcome(1)[1:4] == (
                "PeerLost",
                f"rank 2 (process {ranks.pids[2]}) is gone: its process has ended",
                (2,),
            )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_all_ranks_have_contributed_to_completes_whoever_has_died_since(tmp_path: Path, kind: str) -> None:
    flag = Flag()

    def body(group: SharedMemoryGroup) -> list[float]:
        if group.rank == 0:
            signal.sigwait({signal.SIGUSR1})
        elif group.rank == 2:
            flag.up()
        sums = [float(group.all_reduce(np.ones(3))[0])]
        with pytest.raises(PeerLost) as caught:
            group.all_reduce(np.ones(3))
        return sums + list(caught.value.ranks)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Ranks(tmp_path, 3, body, kind=kind) as ranks:
            flag.wait()
            ranks.send(2, signal.SIGSTOP)
            ranks.send(0, signal.SIGUSR1)
            time.sleep(0.05)
            ranks.send(2, signal.SIGKILL)
            assert [ranks.outcome(rank).value for rank in (0, 1)] == [[3.0, 2], [3.0, 2]]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_may_leave_once_all_have_reached_the_last_barrier(tmp_path: Path, kind: str) -> None:
    def body(group: SharedMemoryGroup) -> None:
        for _ in range(20):
            meet(group)

    for _ in range(3):
        with Ranks(tmp_path, 4, body, kind=kind) as ranks:
            assert ranks.values() == [None] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_leaves_early_is_named_as_such(tmp_path: Path, kind: str) -> None:
    def body(group: SharedMemoryGroup) -> None:
        if group.rank == 0:
            meet(group)

    with Ranks(tmp_path, 2, body, kind=kind) as ranks:
        outcome = ranks.outcome(0)
        assert outcome.what == f"rank 1 (process {ranks.pids[1]}) has left before the others were done"
        assert outcome.ranks == (1,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (lambda group: group.all_reduce(np.ones(8)), "all_reduce of 8 float64"),
        (lambda group: group.all_reduce(np.ones(7, np.float32)), "all_reduce of 7 float32"),
        (lambda group: group.all_reduce(np.ones(1_000_000)), "all_reduce of 1000000 float64"),
        (lambda group: group.broadcast(np.ones(7)), "broadcast of 7 float64"),
    ],
)
def test_different_calls_are_an_error_on_all_ranks(
    tmp_path: Path, odd: Callable[[SharedMemoryGroup], Any], text: str, kind: str
) -> None:
    def body(group: SharedMemoryGroup) -> list[Any]:
        group.all_reduce(np.ones(7))
        errors = []
        for _ in range(2):
            try:
                odd(group) if group.rank == 1 else group.all_reduce(np.ones(7))
            except GroupError as error:
                errors.append((type(error).__name__, error.what, error.ranks))
        return errors

    with Ranks(tmp_path, 3, body, kind=kind, capacity_bytes=4096) as ranks:
        same = "all_reduce of 7 float64"
        what = f"the ranks called different things: rank 0: {same}; rank 1: {text}; rank 2: {same}"
        errors = [("CallMismatch", what, (1,)), ("GroupError", f"a call of this group has failed: {what}", ())]
        assert ranks.values() == [errors] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_rank_only_delays_and_the_others_sleep(tmp_path: Path, kind: str) -> None:
    def body(group: SharedMemoryGroup) -> tuple[float, bool]:
        meet(group)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        began_s, cpu_s = time.monotonic(), time.process_time()
        total = float(group.all_reduce(np.ones(5))[0])
        assert group.rank == 1 or time.monotonic() - began_s > 0.3
        return total, time.process_time() - cpu_s < 0.15

    with Ranks(tmp_path, 3, body, kind=kind, spin=True) as ranks:
        os.waitid(os.P_PID, ranks.pids[1], os.WSTOPPED)
        time.sleep(0.35)
        ranks.send(1, signal.SIGCONT)
        assert ranks.values() == [(3.0, True)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_signals_during_a_wait_neither_end_it_nor_hide_a_death(tmp_path: Path, kind: str) -> None:
    def body(group: SharedMemoryGroup) -> int:
        count = 0

        def handle(*_: object) -> None:
            nonlocal count
            count += 1

        meet(group)
        if group.rank == 0:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        if group.rank == 1:
            time.sleep(0.1)
        meet(group)
        if group.rank == 1:
            time.sleep(60)
        try:
            meet(group)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert group.rank == 1 or count > 5
        return count

    with Ranks(tmp_path, 2, body, kind=kind) as ranks:
        time.sleep(0.2)
        killed_s = ranks.send(1, signal.SIGKILL)
        outcome = ranks.outcome(0)
        assert (outcome.error, outcome.ranks) == ("PeerLost", (1,)), outcome.what
        assert outcome.at_s - killed_s < NOTICED_WITHIN_S


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_ends_a_wait_and_the_group(tmp_path: Path, kind: str) -> None:
    flag = Flag()

    def body(group: SharedMemoryGroup) -> str:
        if group.rank == 1:
            time.sleep(60)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        flag.up()
        with pytest.raises(KeyboardInterrupt):
            meet(group)
        with pytest.raises(GroupError) as caught:
            meet(group)
        return caught.value.what

    with Ranks(tmp_path, 2, body, kind=kind) as ranks:
        flag.wait()
        sent_s = ranks.send(0, signal.SIGINT)
        outcome = ranks.outcome(0)
        assert outcome.value == "a call of this group has failed: KeyboardInterrupt()"
        assert outcome.at_s - sent_s < NOTICED_WITHIN_S


def test_two_threads_at_once_are_refused(tmp_path: Path) -> None:
    def body(group: SharedMemoryGroup) -> str:
        meet(group)
        if group.rank == 1:
            time.sleep(0.15)
            meet(group)
            return ""
        thread = threading.Thread(target=meet, args=(group,))
        thread.start()
        time.sleep(0.05)
        with pytest.raises(GroupError) as caught:
            group.all_reduce(np.ones(3))
        thread.join()
        return caught.value.what

    with Ranks(tmp_path, 2, body) as ranks:
        assert ranks.values() == ["two threads call the group of one worker at the same time", ""]


def test_closing_the_group_ends_the_call_of_another_thread(tmp_path: Path) -> None:
    def body(group: SharedMemoryGroup) -> bool:
        if group.rank == 1:
            time.sleep(60)
        errors: list[GroupError] = []

        def wait() -> None:
            try:
                meet(group)
            except GroupError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        group.close()
        thread.join(2)
        return [str(error.what) for error in errors] == ["the group was closed during a call"]

    with Ranks(tmp_path, 2, body) as ranks:
        assert ranks.outcome(0).value is True


def test_a_child_of_a_worker_is_no_member_and_does_not_hide_its_death(tmp_path: Path) -> None:
    def body(group: SharedMemoryGroup) -> None:
        if group.rank == 1:
            read_end, write_end = os.pipe()
            if os.fork() == 0:
                try:
                    meet(group)
                except GroupError as error:
                    os.write(write_end, error.what.encode())
                time.sleep(2)  # outlives its parent
                os._exit(0)
            assert os.read(read_end, 1000) == b"the group belongs to the process that joined it, not to its children"
            meet(group)
            os.kill(os.getpid(), signal.SIGKILL)
        meet(group)
        meet(group)

    with Ranks(tmp_path, 2, body) as ranks:
        began_s = time.monotonic()
        outcome = ranks.outcome(0)
        assert (outcome.error, outcome.ranks) == ("PeerLost", (1,)), outcome.what
        assert outcome.at_s - began_s < 1.5
