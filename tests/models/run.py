"""Run programs and keep what each came to: ``python -m tests.models.run plain|workers|mirrored FOLDER [NAME…]``.

``workers`` is for ``tfmp launch``. All programs run in one start of the processes; rank 0 writes ``FOLDER/NAME.json``
with either the final weights and logs or the error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def main() -> None:
    mode, folder, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    keras.config.set_floatx("float64")
    strategy = _strategy(mode)
    from tests.models.programs import PROGRAMS

    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0
    for name in names or PROGRAMS:
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        try:
            result = _train(PROGRAMS[name], strategy)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(f"{name}: {result.get('error', 'trained')[:200]}", flush=True)
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(result))


def _strategy(mode: str) -> Any:
    if mode == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return tf.distribute.MultiWorkerMirroredStrategy() if mode == "workers" else None


def _train(program: Any, strategy: Any) -> dict[str, Any]:
    from tests.models.programs import EPOCHS

    if strategy is None:
        model, data, fit = program()
        logs = _fit(model, data, {"epochs": EPOCHS, **fit})
        return {"weights": [np.asarray(w).ravel().tolist() for w in model.get_weights()], "logs": logs}
    from tfmp.distribute import bridge, read_together

    with strategy.scope():
        model, data, fit = program()
    bridge(model)
    logs = _fit(model, data, {"epochs": EPOCHS, **fit})
    values = read_together(strategy, model.weights)
    return {"weights": [np.asarray(value).ravel().tolist() for value in values], "logs": logs}


def _fit(model: Any, data: Any, settings: dict[str, Any]) -> list[dict[str, Any]]:
    history = model.fit(data, verbose=0, **settings).history
    return [
        {name: np.asarray(values[epoch]).tolist() for name, values in history.items()}
        for epoch in range(len(history["loss"]))
    ]


if __name__ == "__main__":
    main()
