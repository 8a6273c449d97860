"""Workers that must have the same weights and read the same batches: where they do not, all of them say so."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfmp.distribute.reducers import Reducer
from tfmp.distribute.state import is_seed, local_value
from tfmp.errors import TfmpError


def check_batches(checksums: Sequence[float], devices: int, step: int, where: str) -> None:
    """Check that all workers have read the same batches.

    Args:
        checksums: Of each replica, [R]; empty if there are none.
        devices: Replicas of a worker.
        step: The last step of these batches, from 1.
        where: ``fit`` or ``evaluate``.

    Raises:
        TfmpError: They have not. Every worker raises it.
    """
    of_workers = list(checksums)[::devices]
    if len(set(of_workers)) > 1:
        raise TfmpError(
            f"{_groups(of_workers)} read different batches up to step {step}: some samples would be seen twice, others "
            "never",
            where=f"the data given to {where}",
            hint="every worker must read the same global batches in the same order: draw the order from one seed, or "
            "from the number of the epoch, never from the rank, the clock or an unseeded generator",
        )


def check_weights(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
    """Check that all workers begin with the same weights. Every worker must call this at the same point.

    Args:
        strategy: The strategy of several workers.
        variables: The model's Keras variables. Those that differ by nature (random numbers, state that is summed over
            replicas) are left out.

    Raises:
        TfmpError: They do not. Every worker raises it and names the first variable that differs.
    """
    compared = [v for v in variables if not is_seed(v) and v.synchronization != "on_read"]
    own = [zlib.crc32(np.ascontiguousarray(local_value(strategy, v).numpy()).tobytes()) for v in compared]
    digests = _gathered(strategy, np.array(own, np.float64))[:: len(strategy.extended.worker_devices)]
    for i, variable in enumerate(compared):
        if len(set(digests[:, i])) > 1:
            raise TfmpError(
                f"{_groups(digests[:, i])} begin with different values of {variable.path}",
                where="the weights when fit begins",
                hint="set weights on every worker alike, before or after bridge(model), not on one rank alone; without "
                "a seed, initial weights differ: keras.utils.set_random_seed(0)",
            )


def _gathered(strategy: tf.distribute.Strategy, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each replica's values [n], as [R, n]."""
    replicas = strategy.num_replicas_in_sync

    @tf.function(autograph=False)
    def gather(own: tf.Tensor) -> Any:
        def of_replica() -> tf.Tensor:
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            (rows,) = Reducer(replicas).sum([tf.one_hot(rank, replicas, dtype=tf.float64)[:, tf.newaxis] * own])
            return rows

        return strategy.run(of_replica)

    found: npt.NDArray[np.float64] = strategy.experimental_local_results(gather(tf.constant(values)))[0].numpy()
    return found


def _groups(values: Sequence[float] | npt.NDArray[np.float64]) -> str:
    """Which workers agree: ``workers 0, 2 and worker 1``."""
    members: dict[float, list[str]] = {}
    for worker, value in enumerate(values):
        members.setdefault(float(value), []).append(str(worker))
    return " and ".join(f"worker{'s' if len(group) > 1 else ''} {', '.join(group)}" for group in members.values())
