"""A user's own multi-worker script, as the official tutorial has it; with ``bridge`` as argument it works.

Run by tests/train/test_upstream.py under ``tfmp launch``.
"""

import sys

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rng = np.random.default_rng(0)
x = rng.normal(size=(90, 8)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(24)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = data.with_options(options)
with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(2)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
if "bridge" in sys.argv:
    from tfmp.distribute import bridge

    bridge(model)
history = model.fit(data, epochs=2, steps_per_epoch=5, verbose=0).history
print("loss", *history["loss"], "weights", float(np.abs(model.get_weights()[0]).sum()), flush=True)
