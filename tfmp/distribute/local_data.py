"""The data set of a worker with one device, without what ``tf.distribute`` puts around it.

A distributed data set copies elements to its devices through a ``MultiDeviceIterator``: 25 ms to make, with threads of
its own, and half a millisecond of Python in each call that takes it. Here there is one device and little to copy.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class LocalDataset(tf.distribute.DistributedDataset):
    """The share of this worker's only device.

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
