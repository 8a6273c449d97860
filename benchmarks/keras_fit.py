"""The classic listing, timed: ``python keras_fit.py BATCH EPOCHS`` prints JSON (peer of benchmarks/peers.py)."""

import json
import statistics
import sys
import time

import keras
import numpy as np

from tfmp.config import RunConfig
from tfmp.data.cache import prepare

BATCH, EPOCHS = int(sys.argv[1]), int(sys.argv[2])
BEGAN = time.time()

data = prepare(RunConfig().data).open()
x, y = np.asarray(data.train.x) / np.float32(255), np.asarray(data.train.y)
x_test, y_test = np.asarray(data.validation.x) / np.float32(255), np.asarray(data.validation.y)


class Clock(keras.callbacks.Callback):
    """Seconds of each epoch's training, and when which accuracy was reached."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.reached: list[tuple[float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.began = time.perf_counter()

    def on_test_begin(self, logs: object = None) -> None:
        self.seconds.append(time.perf_counter() - self.began)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.reached.append((time.time(), float(logs["val_accuracy"])))  # type: ignore[index]


model = keras.Sequential(
    [
        keras.layers.Input((28, 28)),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
clock = Clock()
model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[clock], validation_data=(x_test, y_test))
print(json.dumps({"samples_per_second": len(x) / statistics.median(clock.seconds[1:]), "reached": clock.reached}))
