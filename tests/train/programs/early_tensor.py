"""Touches TensorFlow before the strategy: collective operations can then no longer be set up."""

import tensorflow as tf

tf.constant(1.0)
tf.distribute.MultiWorkerMirroredStrategy()
