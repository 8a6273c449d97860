"""TensorFlow in the tests' own process: four logical CPU devices, float64."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import pytest
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration() for _ in range(4)]
)


@pytest.fixture(autouse=True)
def _float64() -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def mirrored(replicas: int) -> tf.distribute.Strategy:
    """A MirroredStrategy over the first ``replicas`` logical CPU devices."""
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
