"""Takes the values of all variables of a training from the replicas and restores them, bit for bit.

Replicas have the same trained weights and optimizer state, but each has its own metric state, random numbers and
moving statistics (those of batch normalization are mirrored variables that Keras assigns on each replica alone).
Reading a variable that is synchronised on read would sum it, and assigning it would divide by the number of replicas.
So the component of each replica is read and assigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfmp.checkpoint.format import Array
from tfmp.distribute.state import first_local_replica, gather_replicas, is_seed, local_value, seed_of
from tfmp.errors import TfmpError


class Snapshots:
    """Takes and restores the state of one model. Create it once the variables exist (in ``on_train_begin``).

    Args:
        model: A compiled model that was built under the strategy.
        strategy: The strategy.
    """

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        metric_variables = [v for metric in model.metrics for v in metric.variables]
        everything = [*model.variables, *model.optimizer.variables, *metric_variables]
        unique = list({id(v): v for v in everything}.values())
        self._strategy = strategy
        summed = {id(v) for v in (*model.trainable_variables, *model.optimizer.variables)}
        self._alike = [v for v in unique if id(v) in summed]
        self._differing = [v for v in unique if id(v) not in summed]
        self._metric_ids = {id(v) for v in metric_variables}
        self._gather = gather_replicas(strategy, self._differing)

    def take(self) -> list[Array]:
        """Return an array for each variable, with a row for each replica where replicas differ.

        Every worker must call this at the same point; all get the same arrays.
        """
        alike: list[Array] = [local_value(self._strategy, v).numpy() for v in self._alike]
        return [*alike, *self._gather()]

    def names(self) -> list[str]:
        """Return the path of each variable in the order of :meth:`take`."""
        return [v.path for v in (*self._alike, *self._differing)]

    def restore(self, arrays: Sequence[Array], *, metrics: bool) -> None:
        """Restore a state that was taken with any number of replicas.

        Args:
            arrays: What :meth:`take` returned.
            metrics: Restore the metrics; otherwise all the rest. (Keras resets metrics when an epoch begins.)

        Raises:
            TfmpError: The arrays belong to another model.
        """
        variables = [*self._alike, *self._differing]
        self._check(variables, arrays)
        for i, (variable, array) in enumerate(zip(variables, arrays, strict=True)):
            if metrics != (id(variable) in self._metric_ids):
                continue
            components = self._strategy.experimental_local_results(variable.value)
            first = first_local_replica(self._strategy)
            for rank, component in enumerate(components, first):
                component.assign(array if i < len(self._alike) else self._share(variable, array, rank))

    def _share(self, variable: Any, rows: Array, rank: int) -> Array:
        """The value for replica ``rank`` of a variable that had a row for each replica."""
        if len(rows) == self._strategy.num_replicas_in_sync:
            return rows[rank]
        if is_seed(variable):
            return seed_of(rank, rows[0])
        if variable.aggregation == "mean":
            return rows.mean(0, dtype=np.float64).astype(rows.dtype)
        if variable.synchronization != "on_read":
            return rows[0]
        total = rows[0] if variable.aggregation == "only_first_replica" else rows.sum(0, dtype=rows.dtype)
        return total if rank == 0 else np.zeros_like(total)

    def _check(self, variables: Sequence[Any], arrays: Sequence[Array]) -> None:
        alike = len(self._alike)
        expected = [tuple(v.shape) for v in variables]
        found = [array.shape if i < alike else array.shape[1:] for i, array in enumerate(arrays)]
        if expected != found:
            place = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), None)
            what = f"expected {len(expected)} variables, found {len(found)}"
            if place is not None:
                what = f"{variables[place].path}: expected shape {expected[place]}, found {found[place]}"
            raise TfmpError(
                f"the checkpoint is of another model: {what}",
                hint="resume with the model that the run was started with, or use another --run-dir",
            )
