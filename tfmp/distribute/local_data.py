"""The data set of a worker with one device, without what ``tf.distribute`` puts around it.

A distributed data set copies elements to its devices through a ``MultiDeviceIterator``: 25 ms to make, with threads of
its own, and half a millisecond of Python in each call that takes it. Here there is one device and little to copy.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class LocalDataset(tf.distribute.DistributedDataset):
    """The share of this worker's only device, endless.

    Args:
        dataset: The share.
        one_iterator: All readers go on where the last one stopped, in place of starting anew: making an iterator
            takes milliseconds. For a data set that repeats itself and whose readers read whole rounds.
    """

    def __init__(self, dataset: tf.data.Dataset, *, one_iterator: bool) -> None:
        self._dataset = dataset
        self._one_iterator = one_iterator
        self._iterator: Any = None

    @property
    def element_spec(self) -> Any:
        """See ``tf.data.Dataset``."""
        return self._dataset.element_spec

    def __iter__(self) -> Any:
        if self._iterator is not None and self._one_iterator:
            return self._iterator
        # Blocks of sample numbers are read where the loop runs; a GPU takes its copy of them from there.
        with tf.device("CPU:0"):
            self._iterator = iter(self._dataset)
        return self._iterator
