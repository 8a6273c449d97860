"""Each worker's share of the data as tf.data: blocks of sample numbers, and the gather that turns them into batches.

Little travels through tf.data: the numbers of the samples that a replica takes in each of the next K steps. Images stay
in the memory-mapped cache that all workers share, and the step gathers, casts and scales a whole batch at once.
(``from_tensor_slices().shuffle()`` handles 0.25 M samples/s, the gather 1.7 M.)

Dimensions: S steps per epoch, K steps per execution, L local replicas, P rows per replica.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfmp.data.arrays import SplitArrays
from tfmp.data.order import epoch_plan
from tfmp.distribute.keras_hooks import endless_adapter

_LAST_EPOCH = 2**31 - 1


@dataclass(frozen=True)
class FeedPlan:
    """Which samples a worker takes in which step.

    Attributes:
        batch_size: Global batch, in samples.
        replicas: Replicas over all workers (R).
        first_replica: Rank of this worker's first replica.
        local_replicas: Replicas of this worker (L).
        seed: Seed of the order, which depends only on it and the epoch.
        shuffle: Whether samples are permuted each epoch.
        steps_per_epoch: Steps of an epoch (S). ``None``: each sample once.
        steps_per_execution: Steps of one call of the train function (K).
    """

    batch_size: int
    replicas: int
    first_replica: int
    local_replicas: int
    seed: int
    shuffle: bool
    steps_per_epoch: int | None
    steps_per_execution: int


class Feed:
    """Batches of in-memory (or memory-mapped) arrays for one worker, exact to the sample.

    Args:
        split: The samples. Floats reach the model in Keras's float type, everything else as it is.
        plan: Which samples this worker takes.
        scaled: Whether uint8 inputs are the pixels of images, to be divided by 255.
    """

    def __init__(self, split: SplitArrays, plan: FeedPlan, *, scaled: bool = False) -> None:
        self._plan = plan
        self._count = len(split)
        self._structure = split.parts
        x_leaves = len(keras.tree.flatten(split.x))
        self._leaves = [
            _Leaf(array, scaled=scaled and i < x_leaves) for i, array in enumerate(keras.tree.flatten(self._structure))
        ]
        first = self.epoch_blocks(0)
        self._rows = int(first["index"].shape[2])
        self._samples_per_epoch = int(first["n_global"][:: plan.local_replicas].sum())

    @property
    def rows(self) -> int:
        """Rows per replica (P): its share of the global batch, rounded up."""
        return self._rows

    @property
    def samples_per_epoch(self) -> int:
        """Samples of the first epoch over all replicas."""
        return self._samples_per_epoch

    def batch_spec(self) -> Any:
        """Specs of one replica's ``(x, y)`` or ``(x, y, sample_weight)``, each [P, …], as the model sees them."""
        specs = [tf.TensorSpec((self._rows, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        return keras.tree.pack_sequence_as(self._structure, specs)

    def gather(self, index: tf.Tensor) -> Any:
        """``(x, y)`` or ``(x, y, sample_weight)``, each [P, …], of the sample numbers ``index`` [P]."""
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group) or 0) if context else 0
        local = (replica - self._plan.first_replica) % self._plan.local_replicas
        rows = [leaf.gather(index, local, self._rows) for leaf in self._leaves]
        return keras.tree.pack_sequence_as(self._structure, rows)

    def epoch_blocks(self, epoch: int, first_step: int = 0) -> dict[str, npt.NDArray[np.int32]]:
        """The blocks of one epoch in the order of tf.data: executions outermost, local replicas innermost.

        Args:
            epoch: Epoch number, from 0.
            first_step: The first step to include.

        Returns:
            ``index`` [B·L, K, P], ``n_local`` [B·L, K], ``n_global`` [B·L, K], ``steps`` [B·L], with B executions.
        """
        plan = self._plan
        shares = [
            epoch_plan(
                self._count,
                plan.batch_size,
                plan.first_replica + i,
                plan.replicas,
                plan.seed,
                epoch,
                plan.shuffle,
                plan.steps_per_epoch,
            )
            for i in range(plan.local_replicas)
        ]
        steps = len(shares[0].n_global) - first_step
        k = plan.steps_per_execution
        executions = -(-steps // k)

        def blocks(name: str) -> npt.NDArray[np.int32]:
            stacked = np.stack([getattr(share, name)[first_step:] for share in shares], 1)  # [S, L, …]
            padding = [(0, executions * k - steps)] + [(0, 0)] * (stacked.ndim - 1)
            padded = np.pad(stacked, padding).reshape(executions, k, plan.local_replicas, *stacked.shape[2:])
            merged: npt.NDArray[np.int32] = padded.swapaxes(1, 2).reshape(-1, k, *stacked.shape[2:])
            return merged

        lengths = np.minimum(k, steps - k * np.arange(executions)).astype(np.int32)
        return {
            "index": blocks("index"),
            "n_local": blocks("n_local"),
            "n_global": blocks("n_global"),
            "steps": np.repeat(lengths, plan.local_replicas),
        }

    def dataset(
        self, strategy: tf.distribute.Strategy, *, repeat_epoch: bool = False, start: tuple[int, int] = (0, 0)
    ) -> Any:
        """An endless distributed data set of blocks, for ``fit`` and ``evaluate``.

        Args:
            strategy: The strategy that the data set is for.
            repeat_epoch: Yield the first epoch again and again (evaluation) instead of epoch after epoch.
            start: Epoch, and step in that epoch, to begin with. Executions are aligned to that step.
        """
        k, rows = self._plan.steps_per_execution, self._rows
        names = ("index", "n_local", "n_global", "steps")

        def blocks_of(epoch: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], ...]:
            first_step = start[1] if epoch == start[0] else 0
            blocks = self.epoch_blocks(0 if repeat_epoch else int(epoch), first_step)
            return tuple(blocks[name] for name in names)

        @tf.autograph.experimental.do_not_convert  # rewriting it takes a quarter of a second and changes nothing
        def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            values = tf.numpy_function(blocks_of, [epoch], [tf.int32] * len(names))
            for value, shape in zip(values, [(None, k, rows), (None, k), (None, k), (None,)], strict=True):
                value.set_shape(shape)
            return tf.data.Dataset.from_tensor_slices(dict(zip(names, values, strict=True)))

        def share() -> tf.data.Dataset:
            endless = tf.data.Dataset.range(start[0], _LAST_EPOCH).flat_map(one_epoch)
            # Before every element, a distributed iterator of unknown length asks all workers whether there is more.
            endless = endless.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
            options = tf.data.Options()
            options.threading.private_threadpool_size = 1
            options.autotune.enabled = False
            return endless.prefetch(1).with_options(options)

        if self._plan.local_replicas == 1:
            return endless_adapter(LocalDataset(share()))
        # The plan already knows which replicas belong to this worker.
        return strategy.distribute_datasets_from_function(lambda _context: share())


class LocalDataset(tf.distribute.DistributedDataset):
    """The share of this worker's only device, without what ``tf.distribute`` puts around it.

    A distributed data set copies elements to its devices through a ``MultiDeviceIterator``: 25 ms to make, with threads
    of its own, and half a millisecond of Python in each call that takes it. Here there is one device and little to
    copy.

    Args:
        dataset: The share.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    @property
    def element_spec(self) -> Any:
        """See ``tf.data.Dataset``."""
        return self._dataset.element_spec

    def __iter__(self) -> Any:
        # Blocks of sample numbers are read where the loop runs; a GPU takes its copy of them from there.
        with tf.device("CPU:0"):
            return iter(self._dataset)


class _Leaf:
    """One array of the samples, on each local device."""

    def __init__(self, array: npt.NDArray[Any], *, scaled: bool) -> None:
        floatx = tf.as_dtype(keras.config.floatx())
        self._scale = 255.0 if scaled and array.dtype == np.uint8 else None
        self.shape = array.shape[1:]
        own = tf.as_dtype(array.dtype)
        self.dtype = floatx if own.is_floating or self._scale is not None else own
        self._tensors = _on_each_device(array)

    def gather(self, index: tf.Tensor, local: int, rows: int) -> tf.Tensor:
        values = tf.gather(self._tensors[local], index)
        if values.dtype != self.dtype:
            values = tf.cast(values, self.dtype)
        if self._scale is not None:
            values /= self._scale
        values.set_shape((rows, *self.shape))
        return values


def _on_each_device(array: npt.NDArray[Any]) -> list[tf.Tensor]:
    """A tensor for each local replica: one shared tensor in main memory, without a copy, or a copy on each GPU."""
    strategy = tf.distribute.get_strategy()
    devices = strategy.extended.worker_devices
    if not any("GPU" in device for device in devices):
        with tf.device("CPU:0"):
            return [_without_copy(array)] * len(devices)
    tensors = []
    for device in devices:
        with tf.device(device):
            tensors.append(tf.identity(tf.constant(array)))
    return tensors


def _without_copy(array: npt.NDArray[Any]) -> tf.Tensor:
    """The array as a CPU tensor that shares its memory if its alignment allows; else a copy.

    The memory-mapped cache is page-aligned, so N workers hold one copy of the data in the page cache.
    """
    aligned = array.ctypes.data % 64 == 0 and array.flags.c_contiguous and array.flags.writeable
    loader: Callable[..., Any] = tf.experimental.dlpack.from_dlpack
    if aligned and array.size and array.dtype.kind in "fiu":
        return loader(np.asarray(array).__dlpack__())
    return tf.constant(array)
