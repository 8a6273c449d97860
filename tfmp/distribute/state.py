"""State that workers must read together: metrics, variables whose value is spread over replicas, random numbers.

Under MultiWorkerMirroredStrategy, reading a variable that is synchronised on read is a collective operation. If one
worker reads alone (the chief, while saving), it waits for ever; reading each metric costs 4.5 ms over gRPC.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfmp.distribute.reducers import Reducer


def local_sum_part(variable: Any, replicas: int, *, is_replicated: bool = False) -> tf.Tensor:
    """This replica's float64 addend of a variable's value over all replicas (call in a replica context)."""
    value = tf.cast(variable.value, tf.float64)
    if variable.aggregation == "mean" and not is_replicated:
        return value / replicas
    if variable.aggregation == "only_first_replica" or is_replicated:
        first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        return tf.where(first, value, tf.zeros_like(value))
    return value


def summed_state(
    variables: Sequence[Any], extra: tf.Tensor, reducer: Reducer, replicated: Collection[int] = ()
) -> tf.Tensor:
    """All variables' global values and ``extra`` summed, as one flat float64 vector (call in a replica context).

    Variables whose ``id`` is in ``replicated`` hold the global value on every replica already.
    """
    parts = [
        tf.reshape(local_sum_part(v, reducer.replicas, is_replicated=id(v) in replicated), [-1]) for v in variables
    ]
    (total,) = reducer.sum([tf.concat([*parts, tf.cast(extra, tf.float64)], 0)])
    return total


def split_state(variables: Sequence[Any], flat: tf.Tensor | npt.NDArray[np.float64]) -> list[tuple[Any, tf.Tensor]]:
    """Cut the vector of :func:`summed_state` into ``(variable, value)`` pairs for ``keras.StatelessScope``."""
    pairs, offset = [], 0
    for variable in variables:
        size = int(np.prod(variable.shape, dtype=np.int64))
        value = tf.reshape(flat[offset : offset + size], tuple(variable.shape))
        pairs.append((variable, tf.cast(value, variable.dtype)))
        offset += size
    return pairs


def read_together(strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> list[npt.NDArray[Any]]:
    """Values of Keras variables as one process would hold them. Every worker must call this at the same point.

    Args:
        strategy: The strategy the variables were built under.
        variables: Keras variables; those synchronised on read are aggregated over all replicas.

    Returns:
        NumPy arrays in the order given, equal on all workers.
    """
    variables = list(variables)
    spread = [v for v in variables if v.synchronization == "on_read"]
    values = {}
    if spread:
        reducer = Reducer(strategy.num_replicas_in_sync)

        @tf.function(autograph=False)
        def gather() -> tf.Tensor:
            return strategy.run(lambda: summed_state(spread, tf.zeros([0], tf.float64), reducer))

        flat = strategy.experimental_local_results(gather())[0].numpy()
        values = {id(v): value.numpy() for v, value in split_state(spread, flat)}
    return [values[id(v)] if id(v) in values else local_value(strategy, v).numpy() for v in variables]


def gather_replicas(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> Any:
    """Return a function that gathers each replica's values of Keras variables. Every worker must call it together.

    Args:
        strategy: The strategy the variables were built under.
        variables: Keras variables.

    Returns:
        A function without arguments that returns NumPy arrays [R, …] in the order given, of the variables' dtypes.
    """
    replicas = strategy.num_replicas_in_sync

    def gather_one_row() -> tf.Tensor:
        flat = tf.concat([tf.reshape(tf.cast(v.value, tf.float64), [-1]) for v in variables], 0)
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        # Adding -0.0, unlike 0.0, leaves every number as it is, bit for bit.
        rows = tf.where(tf.equal(tf.range(replicas), rank)[:, tf.newaxis], flat, tf.constant(-0.0, tf.float64))
        (gathered,) = Reducer(replicas).sum([rows])
        return gathered

    compiled = tf.function(lambda: strategy.run(gather_one_row), autograph=False)

    def gather() -> list[npt.NDArray[Any]]:
        if not variables:
            return []
        rows = strategy.experimental_local_results(compiled())[0].numpy()
        ends = np.cumsum([int(np.prod(v.shape, dtype=np.int64)) for v in variables])
        parts = np.split(rows, ends[:-1], 1)
        return [
            part.reshape(replicas, *v.shape).astype(tf.as_dtype(v.dtype).as_numpy_dtype)
            for v, part in zip(variables, parts, strict=True)
        ]

    return gather


def gather_flags(strategy: tf.distribute.Strategy, flag: bool) -> list[bool]:
    """Each replica's flag, which is that of its worker. Every worker must call this at the same point."""
    replicas = strategy.num_replicas_in_sync

    @tf.function(autograph=False)
    def gather() -> Any:
        def gather_one() -> tf.Tensor:
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            (flags,) = Reducer(replicas).sum([tf.one_hot(rank, replicas, float(flag), 0.0)])
            return flags

        return strategy.run(gather_one)

    return [bool(value) for value in strategy.experimental_local_results(gather())[0].numpy()]


@contextmanager
def values_kept(strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> Iterator[None]:
    """Restore this worker's replicas of Keras variables at the end, bit for bit."""
    components = [part for v in variables for part in strategy.experimental_local_results(v.value)]
    values = [np.array(component.numpy()) for component in components]
    try:
        yield
    finally:
        for component, value in zip(components, values, strict=True):
            component.assign(value)


def local_value(strategy: tf.distribute.Strategy, variable: Any) -> Any:
    """The ``tf.Variable`` of this worker's first replica behind a Keras variable."""
    return strategy.experimental_local_results(variable.value)[0]


def decorrelate_seeds(strategy: tf.distribute.Strategy, model: Any) -> None:
    """Give every replica its own random numbers (Dropout, noise layers).

    All replicas start with the same seed and would drop the same units. The first replica keeps its seed, so that one
    replica computes what one process would.
    """
    first_replica = first_local_replica(strategy)
    for variable in (v for v in model.variables if is_seed(v)):
        for i, component in enumerate(strategy.experimental_local_results(variable.value)):
            if first_replica + i:
                component.assign(seed_of(first_replica + i, component.numpy()))


def is_seed(variable: Any) -> bool:
    """Whether a Keras variable is the state of a random number generator, which differs between replicas."""
    return bool(variable.name == "seed_generator_state")


def seed_of(rank: int, first: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The seed of replica ``rank``, from that of the first one."""
    seed = first.copy()
    # Multiples of the golden ratio of 2**32 spread consecutive ranks far apart; 0 leaves the first as it is.
    seed[0] ^= np.array(rank * 0x9E3779B9 % 2**32, np.uint32).astype(seed.dtype)
    return seed


def first_local_replica(strategy: tf.distribute.Strategy) -> int:
    """The rank, over all workers, of this worker's first replica."""
    resolver = strategy.cluster_resolver
    devices = len(strategy.extended.worker_devices)
    if strategy.num_replicas_in_sync == devices or resolver is None:
        return 0
    chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
    index = resolver.task_id if resolver.task_type == "chief" else resolver.task_id + chiefs
    return int(index) * devices
