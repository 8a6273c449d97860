"""The arithmetic of a plan: how a global batch is shared, how many steps there are, and whether to compile them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tfmp.errors import UsageError
from tfmp.text import count

if TYPE_CHECKING:
    from tfmp.config.schema import RunConfig, TrainingConfig
    from tfmp.planning.host import Device
    from tfmp.planning.layout import Layout

Compiled = Literal["none", "apply", "all"]

#: From so many updated parameters on, over all steps, compiling pays for itself (see :func:`compiled_parts`).
COMPILE_FROM_UPDATES = 600_000_000
# Steps of one call into TensorFlow for an unknown model. A call costs about a millisecond (`docs/performance.md`).
_STEPS_PER_EXECUTION = 32
_MOST_STEPS_PER_EXECUTION = 512
_SPLIT_FROM_STEPS = 128
# How long a call may last on a guessed machine: progress, stop requests and checkpoints wait for its end.
_EXECUTION_S = 0.35
_FLOPS_PER_S = 1e11  # a slow core has a quarter of it, a fast one twice as much
_UPDATE_S = 2e-9  # a parameter's gradient, sum and update
_STEP_S = 1e-4
_MAX_LISTED = 8


def batch_shares(samples: int, replicas: int) -> tuple[int, ...]:
    """Return the samples of each replica: contiguous shares, the first ``samples % replicas`` one larger."""
    base, extra = divmod(samples, replicas)
    return tuple(base + (replica < extra) for replica in range(replicas))


def most_steps_per_execution(row_flops: int, rows: int, parameters: int | None) -> int:
    """Return how many steps a call into TensorFlow may run: enough to hide its cost, few enough to see progress.

    A rule, not a clock, decides: the same on every machine and in every run. (It changes no bit of the weights.)

    Args:
        row_flops: Floating-point operations for each row and parameter: 6 for a training step, 2 for an evaluation.
        rows: Rows that a replica computes in a step.
        parameters: Of the model, fully connected; ``None`` if not known.
    """
    if parameters is None:
        return _STEPS_PER_EXECUTION
    step_s = row_flops * rows * parameters / _FLOPS_PER_S + parameters * _UPDATE_S + _STEP_S
    return max(1, min(_MOST_STEPS_PER_EXECUTION, int(_EXECUTION_S / step_s)))


def _evenly(steps: int, most: int) -> int:
    """Return the steps of executions of about equal length, at most ``most``.

    There are at least two where that costs little: the first of a run, in which TensorFlow traces and compiles, does
    not count for the epoch's rate.
    """
    return -(-steps // max(2 if steps >= _SPLIT_FROM_STEPS else 1, -(-steps // most)))


@dataclass(frozen=True)
class BatchPlan:
    """The sizes of one training.

    Attributes:
        global_batch: Samples of a step, over all replicas.
        per_replica_batch: Rows that every replica computes: the global batch over the replicas, rounded up.
        shares: Samples of each replica in a full step; they differ by one at most.
        party: What a replica is called: ``worker`` if each worker is one replica, else ``replica``.
        train_samples: Training samples.
        steps_per_epoch: Steps of an epoch.
        steps_per_pass: Steps that see each training sample once.
        last_batch_samples: Samples of the last global batch of a pass; none is dropped.
        steps_per_execution: Steps of one call into TensorFlow.
        validation_samples: Validation samples.
        validation_batch: Samples of an evaluation step, over all replicas.
        validation_steps: Evaluation steps; each validation sample counts once.
    """

    global_batch: int
    per_replica_batch: int
    shares: tuple[int, ...]
    party: str
    train_samples: int
    steps_per_epoch: int
    steps_per_pass: int
    last_batch_samples: int
    steps_per_execution: int
    validation_samples: int
    validation_batch: int
    validation_steps: int

    @property
    def uneven(self) -> str | None:
        """How a batch that does not divide evenly is shared: ``64 over 3 workers: 22, 21, 21``; else ``None``."""
        if len(set(self.shares)) == 1:
            return None
        if len(self.shares) <= _MAX_LISTED:
            listed = ", ".join(map(str, self.shares))
        else:
            listed = ", ".join(f"{number} with {size}" for size, number in Counter(self.shares).items())
        return f"{self.global_batch} over {len(self.shares)} {self.party}s: {listed}"


def plan_batches(
    layout: Layout, training: TrainingConfig, train_samples: int, validation_samples: int, parameters: int | None = None
) -> BatchPlan:
    """Work out the sizes.

    Args:
        layout: The replicas.
        training: Batches and steps as configured.
        train_samples: Training samples, after any limit.
        validation_samples: Validation samples, after any limit; 0 for none.
        parameters: Of the model; ``None`` if not known.

    Raises:
        UsageError: Fewer samples, or a smaller global batch, than replicas. (The configuration alone knows neither
            GPUs nor a cluster that is discovered.)
    """
    replicas, batch_size = layout.replicas, training.batch_size
    parties = count(replicas, layout.replica_noun)
    if train_samples < replicas:
        raise UsageError(
            f"expected at least one training sample for each of {parties}, received {count(train_samples, 'sample')}",
            where="data.limit_train",
            hint="train on more samples, or with fewer workers",
        )
    if batch_size < replicas:
        raise UsageError(
            f"expected a global batch of at least one sample for each of {parties}, received {batch_size}",
            where="training.batch_size",
            hint=f"--batch-size {replicas}",
        )
    steps_per_pass = -(-train_samples // batch_size)
    steps = training.steps_per_epoch or steps_per_pass
    rows = -(-batch_size // replicas)
    most = most_steps_per_execution(6, rows, parameters)
    validation_batch = training.validation_batch_size
    validation_steps = -(-validation_samples // validation_batch)
    most_of_validation = most_steps_per_execution(2, -(-validation_batch // replicas), parameters)
    if validation_steps > most_of_validation:
        most = min(most, most_of_validation)
    return BatchPlan(
        global_batch=batch_size,
        per_replica_batch=rows,
        shares=batch_shares(batch_size, replicas),
        party=layout.replica_noun,
        train_samples=train_samples,
        steps_per_epoch=steps,
        steps_per_pass=steps_per_pass,
        last_batch_samples=train_samples - (steps_per_pass - 1) * batch_size,
        steps_per_execution=min(training.steps_per_execution or _evenly(steps, most), steps),
        validation_samples=validation_samples,
        validation_batch=validation_batch,
        validation_steps=validation_steps,
    )


def compiled_parts(
    config: RunConfig, layout: Layout, device: Device, steps_per_epoch: int, parameters: int | None
) -> Compiled:
    """Return which parts of a step to compile with XLA: what pays for itself.

    It changes bits of the result, and so depends only on what all workers know. On CPUs (`benchmarks/step.py`) a
    compiled *apply* saves 0.6 ns a parameter and step, and costs 0.35 s at the start; a compiled *forward and backward*
    is no faster at 16 rows and slower at 128.

    Args:
        config: The configuration.
        layout: The replicas.
        device: What they compute on.
        steps_per_epoch: Steps of an epoch.
        parameters: Of the model; ``None`` if not known.
    """
    if config.training.jit_compile is not None:
        return "all" if config.training.jit_compile else "none"
    if parameters is None or not layout.is_multi_process or device != "cpu":
        return "none"
    updates = config.training.epochs * steps_per_epoch * parameters
    return "apply" if updates >= COMPILE_FROM_UPDATES else "none"
