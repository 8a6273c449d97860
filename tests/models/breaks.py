"""Ways to break the code that makes N workers compute what one process does: `tfmp verify` must find each."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, Done, run_program


@dataclass(frozen=True)
class Break:
    """A fault, put into a copy of the package.

    Attributes:
        file: Which file, within the package.
        right: The code as it is.
        wrong: The code that breaks it.
        named: What the verdict must name: the variable or metric, and the step.
        settings: Settings in which it matters.
    """

    file: str
    right: str
    wrong: str
    named: str
    settings: tuple[str, ...] = ()


KERNEL = "mlp/hidden_1/kernel differs by"
BREAKS = {
    "gradients stay on each worker": Break(
        "distribute/reducers.py", "return self._shared(vector, lasting=False)", "return vector + 0", f"{KERNEL}"
    ),
    "shares of a short batch weigh like full ones": Break(
        "distribute/step.py", "samples = tf.cast(tf.maximum(n_global, 1), dtype)",
        "samples = tf.cast(rows * self._replicas, dtype)", "after step 3",
    ),
    "rows of padding count": Break(
        "distribute/step.py", "(rows if n_local is None else n_local)", "rows", "after step 1",
        ("--batch-size", "255"),
    ),
    "padding counts in the metrics": Break(
        "distribute/local_step.py", ") < n_local, tf.as_dtype", ") < n_local + 9, tf.as_dtype", "accuracy differs by",
        ("--batch-size", "255"),
    ),
    "the loss is that of one worker": Break(
        "distribute/local_step.py", "return tf.cast(total[-1], tf.float64)",
        "return tf.cast(total[-1] / 2, tf.float64)", "loss differs by",
    ),
    "gradients are rounded on their way": Break(
        "distribute/reducers.py", "return self._shared(vector, lasting=False)",
        "return tf.cast(self._shared(tf.cast(vector, tf.float32), lasting=False), vector.dtype)", KERNEL,
    ),
    "gradients are clipped before their sum": Break(
        "distribute/local_step.py", "dense = [gradient for gradient in gradients if gradient is not None]",
        "dense = [tf.clip_by_norm(gradient, 0.05) for gradient in gradients if gradient is not None]", "after step 1",
    ),
    "samples are cut wrongly": Break(
        "data/order.py", "offset = rank * base + np.minimum(rank, extra)", "offset = rank * base", "after step",
        ("--batch-size", "255"),
    ),
    "each worker draws its own initial weights": Break(
        "trainer/worker.py", "keras.utils.set_random_seed(config.training.seed)",
        "keras.utils.set_random_seed(config.training.seed + 1 + task.rank)", f"{KERNEL}",
    ),
    "the optimizer steps twice": Break(
        "distribute/local_step.py", "        self._model.optimizer.apply(gradients, variables)\n",
        "        self._model.optimizer.apply(gradients, variables)\n" * 2, "after step 1",
    ),
}  # fmt: skip


def verified(fault: Break, folder: Path) -> Done:
    """Run `tfmp verify` with the fault in a copy of the package."""
    package = folder / "tfmp"
    shutil.copytree(ROOT / "tfmp", package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / fault.file
    text = path.read_text()
    assert text.count(fault.right) == 1, f"{fault.file} has changed: {fault.right!r}"
    path.write_text(text.replace(fault.right, fault.wrong))
    return run_program(
        "verify", "--workers", 2, *fault.settings, env={"PYTHONPATH": str(folder)}, cwd=folder, timeout_s=120
    )
