"""Which sample is in which step on which replica.

The order of samples depends only on the seed and the number of the pass over the data. The global batch of a step is a
slice of that order, and each replica takes a contiguous share of the slice. So N workers together see what one process
would see.

Legend: n samples, B global batch, R replicas, P = ceil(B / R) per-replica batch, S = ceil(n / B) steps a pass,
T steps of the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MAX_SAMPLES = 2**31 - 1


@dataclass(frozen=True)
class EpochPlan:
    """One replica's share of an epoch.

    Attributes:
        index: int32 [T, P]; the samples of each step. After ``n_local`` samples the row is padding of weight zero: it
            repeats the last sample of the share (or the first of the global batch if the share is empty). It is never
            a row of zeros, which could turn into NaN.
        n_local: int32 [T]; number of real samples in the row.
        n_global: int32 [T]; samples of the whole global batch, the sum of ``n_local`` over the replicas.
    """

    index: NDArray[np.int32]
    n_local: NDArray[np.int32]
    n_global: NDArray[np.int32]


def epoch_permutation(n: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int32]:
    """Return the order of samples of one pass over the data.

    Args:
        n: Number of samples, 1 to 2**31 - 1.
        seed: The run's seed, 0 or more.
        epoch: Number of the pass, from 0.
        shuffle: ``False`` keeps the stored order.

    Returns:
        int32 [n], each of 0..n-1 once.

    Raises:
        ValueError: An argument is out of range.
    """
    if not 1 <= n <= _MAX_SAMPLES:
        raise ValueError(f"expected 1 to {_MAX_SAMPLES} samples, received {n}")
    if seed < 0 or epoch < 0:
        raise ValueError(f"expected seed and epoch of 0 or more, received {seed} and {epoch}")
    if not shuffle:
        return np.arange(n, dtype=np.int32)
    return np.random.default_rng((seed, epoch)).permutation(n).astype(np.int32)


def steps_per_pass(n: int, batch: int) -> int:
    """Return S = ceil(n / batch): the steps that see each sample once."""
    return -(-n // batch)


def epoch_plan(
    n: int,
    batch: int,
    rank: int,
    replicas: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    steps: int | None = None,
) -> EpochPlan:
    """Return one replica's samples for each step of an epoch.

    The training is an endless stream of steps: pass p (S steps) goes through permutation (seed, p), and its last batch
    may be short. With ``steps`` = T, epoch e is the steps e*T to e*T + T-1 of that stream, so epochs shorter or longer
    than a pass drop no sample. By default T = S, and epoch e is pass e.

    Args:
        n: Number of samples.
        batch: Global batch B, in samples.
        rank: The replica, 0..replicas-1.
        replicas: Number of replicas R.
        seed: The run's seed.
        epoch: The epoch, from 0.
        shuffle: ``False`` keeps the stored order in every pass.
        steps: T; ``None`` for S.

    Returns:
        Arrays of static shape [T, P] and [T].

    Raises:
        ValueError: An argument is out of range.
    """
    if replicas < 1 or not 0 <= rank < replicas:
        raise ValueError(f"expected a rank in 0..replicas-1, received rank {rank} of {replicas} replicas")
    if batch < 1 or (steps is not None and steps < 1):
        raise ValueError(f"expected a batch and steps of 1 or more, received {batch} and {steps}")
    if n < 1 or epoch < 0:
        raise ValueError(f"expected 1 sample and epoch 0 or more, received {n} and {epoch}")
    pass_steps = steps_per_pass(n, batch)  # S
    epoch_steps = pass_steps if steps is None else steps  # T
    per_replica = -(-batch // replicas)  # P

    step = epoch * epoch_steps + np.arange(epoch_steps, dtype=np.int64)  # [T], in the endless stream
    pass_of_step, step_in_pass = np.divmod(step, pass_steps)
    first_pass = int(pass_of_step[0])
    orders = [epoch_permutation(n, seed, p, shuffle) for p in range(first_pass, int(pass_of_step[-1]) + 1)]
    order = np.concatenate(orders)  # [passes * n]

    start = step_in_pass * batch
    n_global = np.minimum(batch, n - start)  # [T]
    # Shares differ by one sample at most: the first n_global % replicas have one more.
    base, extra = np.divmod(n_global, replicas)
    n_local = base + (rank < extra)
    offset = rank * base + np.minimum(rank, extra)
    column = np.minimum(np.arange(per_replica), np.maximum(n_local - 1, 0)[:, None])  # [T, P]
    inside = np.where(n_local > 0, offset, 0)[:, None] + column
    row_start = (pass_of_step - first_pass) * n + start
    index = order[row_start[:, None] + inside]
    return EpochPlan(index, n_local.astype(np.int32), n_global.astype(np.int32))
