"""The order of samples: each sample once a pass, whatever the number of replicas."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.data.order import epoch_permutation, epoch_plan, steps_per_pass

sizes = st.integers(1, 200)
replica_counts = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)


def test_permutation_is_numpys_for_seed_and_epoch() -> None:
    assert epoch_permutation(10, 7, 0).tolist() == np.random.default_rng((7, 0)).permutation(10).tolist()
    assert epoch_permutation(10, 0, 0).tolist() == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]
    assert epoch_permutation(10, 0, 0).dtype == np.int32


def test_order_differs_between_epochs_and_seeds_but_not_between_calls() -> None:
    orders = {tuple(epoch_permutation(50, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert epoch_permutation(50, 1, 1).tolist() == epoch_permutation(50, 1, 1).tolist()


def test_without_shuffle_the_stored_order_is_kept_in_every_epoch() -> None:
    assert epoch_permutation(4, 9, 3, shuffle=False).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("n_global", "replicas", "shares"),
    [
        (64, 3, [(0, 22), (22, 21), (43, 21)]),
        (96, 4, [(0, 24), (24, 24), (48, 24), (72, 24)]),
        (2, 4, [(0, 1), (1, 1), (0, 0), (0, 0)]),
    ],
)
def test_shares_are_contiguous_and_the_first_take_the_remainder(
    n_global: int, replicas: int, shares: list[tuple[int, int]]
) -> None:
    plans = [epoch_plan(n_global, n_global, rank, replicas, 0, 0, shuffle=False) for rank in range(replicas)]
    assert [(plan.index[0, 0], plan.n_local[0]) for plan in plans] == shares


def test_a_short_last_batch_is_padded_with_real_samples() -> None:
    plans = [epoch_plan(5, 3, rank, 2, seed=0, epoch=0, shuffle=False) for rank in range(2)]
    assert [plan.index.tolist() for plan in plans] == [[[0, 1], [3, 3]], [[2, 2], [4, 4]]]
    assert [plan.n_local.tolist() for plan in plans] == [[2, 1], [1, 1]]
    assert [plan.n_global.tolist() for plan in plans] == [[3, 2], [3, 2]]


def test_a_replica_with_an_empty_share_repeats_the_batchs_first_sample() -> None:
    plan = epoch_plan(7, 6, rank=2, replicas=3, seed=0, epoch=0, shuffle=False)
    assert plan.index.tolist() == [[4, 5], [6, 6]]
    assert plan.n_local.tolist() == [2, 0]
    assert plan.n_global.tolist() == [6, 1]


def _stream(n: int, batch: int, replicas: int, seed: int, epoch: int, steps: int | None) -> list[list[int]]:
    """The real samples of each step of an epoch, put together from all replicas."""
    plans = [epoch_plan(n, batch, rank, replicas, seed, epoch, steps=steps) for rank in range(replicas)]
    result = []
    for step in range(len(plans[0].n_global)):
        rows = [plan.index[step, : plan.n_local[step]].tolist() for plan in plans]
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
        assert sum(map(len, rows)) == plans[0].n_global[step]
        result.append([sample for row in rows for sample in row])
    return result


@settings(max_examples=60, deadline=None)
@given(n=sizes, batch=sizes, replicas=replica_counts, seed=seeds, epoch=st.integers(0, 50))
def test_replicas_together_see_the_permutation_itself(n: int, batch: int, replicas: int, seed: int, epoch: int) -> None:
    order = epoch_permutation(n, seed, epoch).tolist()
    expected = [order[start : start + batch] for start in range(0, n, batch)]
    assert _stream(n, batch, replicas, seed, epoch, None) == expected


@settings(max_examples=60, deadline=None)
@given(n=sizes, batch=sizes, replicas=replica_counts, seed=seeds, steps=st.integers(1, 40), epoch=st.integers(0, 5))
def test_epochs_of_any_length_cut_one_stream_of_whole_passes(
    n: int, batch: int, replicas: int, seed: int, steps: int, epoch: int
) -> None:
    pass_steps = steps_per_pass(n, batch)
    expected = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        order = epoch_permutation(n, seed, step // pass_steps).tolist()
        start = step % pass_steps * batch
        expected.append(order[start : start + batch])
    assert _stream(n, batch, replicas, seed, epoch, steps) == expected


@settings(max_examples=60, deadline=None)
@given(n=sizes, batch=sizes, replicas=replica_counts, steps=st.none() | st.integers(1, 40))
def test_shapes_are_static_and_padding_stays_inside_the_global_batch(
    n: int, batch: int, replicas: int, steps: int | None
) -> None:
    rank = replicas - 1
    plan = epoch_plan(n, batch, rank, replicas, 3, 2, steps=steps)
    length = -(-n // batch) if steps is None else steps
    assert plan.index.shape == (length, -(-batch // replicas))
    assert plan.n_local.shape == plan.n_global.shape == (length,)
    assert {plan.index.dtype, plan.n_local.dtype, plan.n_global.dtype} == {np.dtype(np.int32)}
    whole = epoch_plan(n, batch, 0, 1, 3, 2, steps=steps)
    for row, n_local, batch_row, n_global in zip(
        plan.index.tolist(), plan.n_local, whole.index.tolist(), plan.n_global, strict=True
    ):
        padding = row[n_local - 1] if n_local else batch_row[0]
        assert row[n_local:] == [padding] * (len(row) - n_local)
        assert set(row) <= set(batch_row[:n_global])


def test_sixty_thousand_samples_are_planned_in_milliseconds() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        plan = epoch_plan(60_000, 256, 1, 4, seed=0, epoch=3)
        assert plan.index.shape == (235, 64)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(20)) < 0.005


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": 0},
        {"batch": 0},
        {"rank": 2},
        {"rank": -1},
        {"replicas": 0},
        {"steps": 0},
        {"epoch": -1},
        {"seed": -1},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        epoch_plan(**{"n": 5, "batch": 2, "rank": 0, "replicas": 2, "seed": 0, "epoch": 0, **arguments})  # type: ignore[arg-type]
