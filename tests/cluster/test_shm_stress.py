"""Many barriers with random delays, each sum checked, and kills at random moments. TFMP_STRESS=1: a million."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from tests.cluster.shm_support import KINDS, Ranks, meet, needs_futex
from tfmp.distribute.shm import SharedMemoryGroup

LONG = os.environ.get("TFMP_STRESS") == "1"
BARRIERS = 1_000_000 if LONG else 20_000
KILLS = 200 if LONG else 8
LENGTHS = (1, 5, 64, 1000, 20_000)
LIMIT_S = 3600.0
NOTICED_WITHIN_S = 0.5


def delay(rng: random.Random) -> None:
    """Mostly none; sometimes a busy loop, a yield or a sleep, so that each rank is last now and then."""
    draw = rng.random()
    if draw < 0.0005:
        time.sleep(rng.random() * 0.003)
    elif draw < 0.01:
        os.sched_yield()
    elif draw < 0.05:
        sum(range(rng.randrange(500)))


def checked_sums(group: SharedMemoryGroup, calls: int) -> float:
    """Make calls whose every element is a whole number known beforehand.

    Returns:
        The longest call, in seconds.
    """
    own, shared = random.Random(group.rank), random.Random(7)
    base = {length: np.arange(length, dtype=np.float64) % 97 for length in LENGTHS}
    slowest_s = 0.0
    for call in range(calls):
        delay(own)
        # Long vectors are rare: this is about order, not about memory speed.
        length = LENGTHS[-1] if shared.random() < 0.01 else shared.choice(LENGTHS[:-1])
        began_s = time.monotonic()
        result = group.all_reduce(base[length] + (call * group.rank) % 1000)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        right = base[length] * group.size + sum((call * rank) % 1000 for rank in range(group.size))
        if not np.array_equal(result, right):
            raise AssertionError(f"wrong sum in call {call}: {result} instead of {right}")
        if shared.random() < 0.05:
            meet(group)
    return slowest_s


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("size", "kind", "spin"),
    [
        pytest.param(2, "futex", True, marks=needs_futex),
        (2, "socket", False),
        pytest.param(4, "futex", False, marks=needs_futex),
        pytest.param(8, "futex", False, marks=needs_futex),
    ],
)
def test_no_sum_is_wrong_and_no_call_hangs(tmp_path: Path, size: int, kind: str, spin: bool) -> None:
    calls = BARRIERS if LONG else BARRIERS // size
    began_s = time.monotonic()
    with Ranks(tmp_path, size, lambda group: checked_sums(group, calls), kind=kind, spin=spin) as ranks:
        slowest_s = [ranks.outcome(rank, LIMIT_S) for rank in range(size)]
    assert [outcome.what for outcome in slowest_s] == [""] * size
    print(
        f"{size} ranks, {kind}: {calls:,} sums in {time.monotonic() - began_s:.0f} s, slowest call "
        f"{max(outcome.value for outcome in slowest_s) * 1e3:.0f} ms"
    )


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_moment_is_noticed_by_all_and_named(tmp_path: Path, kind: str) -> None:
    slowest_s = 0.0
    for number in range(KILLS):
        rng = random.Random(number)
        size = rng.choice([2, 3, 4, 8])
        victim = rng.randrange(size)
        with Ranks(
            tmp_path / str(number), size, lambda group: checked_sums(group, 10**9), kind=kind, timeout_s=1.5
        ) as ranks:
            # From the join (then the join fails) into the calls.
            time.sleep(rng.random() * 0.08)
            killed_s = ranks.send(victim, signal.SIGKILL)
            for rank in set(range(size)) - {victim}:
                outcome = ranks.outcome(rank, 15)
                if outcome.error == "JoinFailed":
                    # Who comes when the others have already left misses them as well.
                    assert victim in outcome.ranks, outcome.what
                    continue
                assert (outcome.error, outcome.ranks) == ("PeerLost", (victim,)), outcome.what
                slowest_s = max(slowest_s, outcome.at_s - killed_s)
    print(f"{kind}: {KILLS} kills, slowest notice {slowest_s * 1e3:.0f} ms")
    assert slowest_s < NOTICED_WITHIN_S
