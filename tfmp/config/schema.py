"""The schema of a run: every key with its type, default, unit and meaning.

A :class:`RunConfig` is immutable and complete: no other source of settings is needed. The readers of
:mod:`tfmp.config.types` make sure that a file, ``--set`` and a flag mean the same number. Rules between keys are in
:mod:`tfmp.config.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tfmp.config import choices
from tfmp.config.types import (
    read_bool,
    read_int,
    read_list,
    read_name_or_reference,
    read_names,
    read_number,
    read_path,
    read_reference,
    read_run_name,
    read_text,
    read_word,
    read_workers,
)


@dataclass(frozen=True)
class Expect:
    """What a key expects, as errors and the reference put it: ``expected <text>, received …``.

    Args:
        text: What it expects.
        names: Names that it offers, if it takes others too.
    """

    text: str
    names: tuple[str, ...] = ()


T = TypeVar("T")

Count: TypeAlias = Annotated[int, Field(ge=1), BeforeValidator(read_int), Expect("an integer ≥ 1")]
NonNegativeInt: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(read_int), Expect("an integer ≥ 0")]
# Zero passes here, so that the rule between keys can refuse it and name the number of workers.
SampleLimit: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(read_int), Expect("an integer ≥ 1")]
Seed: TypeAlias = Annotated[
    int, Field(ge=0, le=2**32 - 1), BeforeValidator(read_int), Expect("an integer from 0 to 4294967295")
]
Port: TypeAlias = Annotated[
    int, Field(ge=1, le=65535), BeforeValidator(read_int), Expect("a port number from 1 to 65535")
]
Positive: TypeAlias = Annotated[float, Field(gt=0), BeforeValidator(read_number), Expect("a number > 0")]
NonNegative: TypeAlias = Annotated[float, Field(ge=0), BeforeValidator(read_number), Expect("a number ≥ 0")]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1), BeforeValidator(read_number), Expect("a number from 0 to 1")]
BelowOne: TypeAlias = Annotated[
    float, Field(ge=0, lt=1), BeforeValidator(read_number), Expect("a number from 0 to below 1")
]
Factor: TypeAlias = Annotated[
    float, Field(gt=0, lt=1), BeforeValidator(read_number), Expect("a number between 0 and 1, both excluded")
]
YesNo: TypeAlias = Annotated[bool, BeforeValidator(read_bool), Expect("yes or no")]
Text: TypeAlias = Annotated[str, BeforeValidator(read_text), Expect("text")]
FilePath: TypeAlias = Annotated[Path, BeforeValidator(read_path), Expect("a path")]
# Absolute, so that the configuration in a run folder names the same files from anywhere.
DataPath: TypeAlias = Annotated[Path, BeforeValidator(read_path), AfterValidator(Path.absolute), Expect("a path")]
Reference: TypeAlias = Annotated[str, BeforeValidator(read_reference), Expect("a package.module:function")]
Names: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(read_names), Expect("a name or a list of names")]
LossName: TypeAlias = Annotated[
    str,
    BeforeValidator(partial(read_name_or_reference, names=choices.LOSSES)),
    Expect(f"one of {', '.join(choices.LOSSES)}, or a package.module:name", choices.LOSSES),
]
MetricName: TypeAlias = Annotated[
    str,
    BeforeValidator(partial(read_name_or_reference, names=choices.METRICS)),
    Expect(f"one of {', '.join(choices.METRICS)}, or a package.module:name", choices.METRICS),
]
RunName: TypeAlias = Annotated[str, BeforeValidator(read_run_name), Expect("a name without slashes")]
Word: TypeAlias = Annotated[T, BeforeValidator(read_word)]
List: TypeAlias = Annotated[tuple[T, ...], BeforeValidator(read_list)]
Workers: TypeAlias = Annotated[
    int | tuple[str, ...],
    BeforeValidator(read_workers),
    Expect("an integer from 1 to 64 or a list of host:port addresses"),
]


class Section(BaseModel):
    """Common to all sections: no unknown keys, and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """The network: an MLP of Dense layers, or your own Keras model."""

    units: List[Count] = Field(
        default=(128,), description="Units of each hidden Dense layer. `[]` makes a linear model."
    )
    activation: Word[choices.Activation] = Field(default="relu", description="Keras activation of the hidden layers.")
    dropout: BelowOne = Field(
        default=0.0, description="Fraction of each hidden layer's outputs to drop during training."
    )
    batch_normalization: YesNo = Field(
        default=False, description="Apply batch normalization between each hidden Dense layer and its activation."
    )
    l2: NonNegative = Field(
        default=0.0, description="Weight of the L2 penalty on the kernels, which is added to the loss."
    )
    factory: Reference | None = Field(
        default=None,
        description="Function that returns your own Keras model. The other model keys must then keep their defaults, "
        "because nothing would read them.",
    )


class DataConfig(Section):
    """The samples. Relative paths start from the current directory, not from the configuration file."""

    dataset: Word[choices.Dataset] = Field(
        default="mnist",
        description="`mnist` comes with tfmp. `idx` reads four IDX files (optionally gzipped), `npz` one file, `csv` "
        "one or two tables, `images` a folder with a subfolder per class.",
    )
    factory: Reference | None = Field(
        default=None,
        description="Function that returns your own training and validation samples, in place of `dataset`: arrays of "
        "any structure, an object with `__len__` and `__getitem__`, or a data set of batches.",
    )
    train_images: DataPath | None = Field(default=None, description="IDX file of the training images (`idx` only).")
    train_labels: DataPath | None = Field(default=None, description="IDX file of the training labels (`idx` only).")
    validation_images: DataPath | None = Field(
        default=None, description="IDX file of the validation images (`idx` only)."
    )
    validation_labels: DataPath | None = Field(
        default=None, description="IDX file of the validation labels (`idx` only)."
    )
    path: DataPath | None = Field(
        default=None,
        description="`npz`: file with the arrays `x_train`, `y_train`, `x_test` and `y_test`. `csv`: the table, with "
        "column names in its first line. `images`: the folder.",
    )
    validation_path: DataPath | None = Field(
        default=None,
        description="The same for validation (`csv`, `images`). null: part of `path`, see `validation_fraction`.",
    )
    validation_fraction: Factor = Field(
        default=0.1,
        description="Fraction of the samples of `path` to validate on, drawn at random but always the same (`csv`, "
        "`images`, without `validation_path`).",
    )
    target: Names | None = Field(
        default=None, description="Name of the column to predict, or several names (`csv` only)."
    )
    columns: Names | None = Field(
        default=None, description="Names of the columns to predict from (`csv` only). null: all others."
    )
    image_size: List[Count] | None = Field(
        default=None,
        description="Height and width to resize images to, e.g. `[32, 32]` (`images` only). null: all have one size.",
    )
    classes: Count | None = Field(
        default=None,
        description="Number of classes (`mnist`, `idx`, `npz`, `csv`). null: 10 for `mnist`, otherwise the largest "
        "label plus one.",
    )
    limit_train: SampleLimit | None = Field(
        default=None,
        description="Use only this many training samples, from the start; at least one per worker. null: all.",
    )
    limit_validation: Count | None = Field(
        default=None, description="Use only this many validation samples, from the start. null: all."
    )
    shuffle: YesNo = Field(
        default=True,
        description="Shuffle the training samples in each epoch. The order depends on the seed and the epoch only.",
    )
    cache_dir: FilePath | None = Field(
        default=None, description="Directory for decoded data. null: your cache directory."
    )

    @property
    def name(self) -> str:
        """Name of the data set, for run folders and reports."""
        return self.dataset if self.factory is None else self.factory.replace(":", ".")


class TrainingConfig(Section):
    """The optimization. Batch sizes are global and do not depend on the number of workers."""

    epochs: Count = Field(default=5, description="Number of passes over the training samples.")
    batch_size: Count = Field(
        default=256,
        description="Global batch size: samples per step, divided among all replicas. Must be at least the number of "
        "replicas. It need not divide evenly: gradients are weighted by samples.",
    )
    steps_per_epoch: Count | None = Field(
        default=None, description="Steps per epoch. null: every sample once; the last batch may be smaller."
    )
    optimizer: Word[choices.Optimizer] = Field(default="adam", description="Keras optimizer.")
    learning_rate: Positive = Field(default=0.008, description="Learning rate after warm-up.")
    schedule: Word[choices.Schedule] = Field(
        default="cosine", description="How the learning rate decays from the end of warm-up to the last step."
    )
    warmup_steps: NonNegativeInt = Field(
        default=0, description="Steps over which the learning rate rises linearly from 0. 0: no warm-up."
    )
    final_learning_rate_fraction: Fraction = Field(
        default=0.0,
        description="Final learning rate as a fraction of `learning_rate`. Must be above 0 for `exponential`.",
    )
    momentum: BelowOne = Field(default=0.0, description="Momentum (`sgd` and `rmsprop` only).")
    weight_decay: NonNegative | None = Field(
        default=None,
        description="Decoupled weight decay. null: the optimizer's own default (`adamw` 0.004, others none).",
    )
    clipnorm: Positive | None = Field(
        default=None, description="Maximum L2 norm of each variable's gradient. Set at most one of the three clip keys."
    )
    global_clipnorm: Positive | None = Field(default=None, description="Maximum L2 norm of all gradients together.")
    clipvalue: Positive | None = Field(default=None, description="Maximum absolute value of each gradient element.")
    loss: LossName = Field(
        default="sparse_categorical_crossentropy",
        description="Keras loss, or your own as package.module:name. The default is for class numbers. The built-in "
        "MLP ends with a softmax for class numbers and one-hot rows, a sigmoid for `binary_crossentropy`, and no "
        "activation otherwise.",
    )
    metrics: List[MetricName] | None = Field(
        default=None,
        description="Keras metrics for training and validation, or your own as package.module:name. May be empty. "
        "null: `accuracy` for a cross-entropy, otherwise none.",
    )
    class_weight: List[NonNegative] | None = Field(
        default=None,
        description="One number per class, in their order: how much a training sample of the class counts in the loss. "
        "null: all count alike.",
    )
    precision: Word[choices.Precision] = Field(
        default="float32",
        description="Keras dtype policy. Mixed policies keep weights in float32; `mixed_float16` also scales the loss.",
    )
    seed: Seed = Field(default=0, description="Seed for initial weights, sample order and dropout.")
    steps_per_execution: Count | None = Field(
        default=None,
        description="Steps per call of the compiled function. Affects speed, and how often your own batch-level "
        "callbacks are called. null: chosen by tfmp.",
    )
    jit_compile: YesNo | None = Field(
        default=None,
        description="Compile the whole step with XLA. null: only the optimizer's part, for the built-in model, in runs "
        "long enough to benefit.",
    )
    validation_every: NonNegativeInt = Field(
        default=1, description="Validate every this many epochs. 0: only after the last epoch."
    )
    validation_batch_size: Count = Field(default=1000, description="Global batch size for validation.")
    early_stopping_patience: NonNegativeInt | None = Field(
        default=None, description="Stop after this many epochs without a lower `val_loss`. null: never."
    )
    plateau_patience: NonNegativeInt | None = Field(
        default=None,
        description="Reduce the learning rate after this many epochs without a lower `val_loss`. null: never.",
    )
    plateau_factor: Factor = Field(default=0.5, description="Factor to multiply the learning rate by on a plateau.")
    callbacks: List[Reference] = Field(
        default=(),
        description="Functions, as package.module:function, that take no arguments and return a Keras callback.",
    )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics, also where the configuration leaves them to the loss."""
        if self.metrics is not None:
            return self.metrics
        return ("accuracy",) if self.loss.endswith("crossentropy") else ()


class ClusterConfig(Section):
    """The workers, their devices and the network between them."""

    strategy: Word[choices.Strategy] = Field(
        default="multi-worker",
        description="`multi-worker`: one process per worker. `mirrored`: one process with several devices.",
    )
    workers: Workers = Field(
        default=1,
        description="Number of workers on this machine (1 to 64), or the `host:port` of each worker in rank order.",
    )
    devices: Count | None = Field(
        default=None,
        description="Number of replicas for `mirrored`: logical CPU devices or GPUs. null: all GPUs, or one CPU.",
    )
    device: Word[choices.Device] = Field(default="auto", description="Kind of device. `auto`: GPUs if there are any.")
    collective: Word[choices.Collective] = Field(
        default="auto",
        description="How to sum gradients. `shm`: shared memory of one host. `ring`: gRPC. `hierarchical`: `shm` "
        "within each host and `ring` between hosts. `nccl`: GPUs only. `auto`: the fastest available.",
    )
    base_port: Port | None = Field(
        default=None, description="Port of worker 0. Worker i listens on base_port + i. null: free ports."
    )
    private_network: Word[choices.Switch] = Field(
        default="auto",
        description="Run local workers in a private network, because TensorFlow's server has no authentication and "
        "listens on every interface. `auto`: if the kernel allows it.",
    )
    threads_per_worker: Count | None = Field(
        default=None, description="TensorFlow threads per worker. null: usable cores divided by local workers."
    )
    start_timeout_s: Positive = Field(
        default=300.0, description="Time limit in seconds for all workers to become ready."
    )
    rendezvous: Text | None = Field(
        default=None,
        description="`host:port` of worker 0, where workers on several hosts exchange their addresses. For launchers "
        "that do not know them, such as `mpirun`.",
    )
    heartbeat_timeout_s: Positive = Field(
        default=30.0,
        description="Seconds of silence from another host after which its worker counts as lost.",
    )
    token: Text | None = Field(
        default=None,
        description="Shared secret of a cluster: launchers without it cannot join. Never shown, and never written to "
        "the run folder. It does not protect TensorFlow's own traffic.",
    )

    @property
    def worker_addresses(self) -> tuple[str, ...] | None:
        """The ``host:port`` of each worker in rank order; ``None`` for local workers, whose ports are chosen later."""
        return None if isinstance(self.workers, int) else self.workers

    @property
    def worker_count(self) -> int:
        """Number of worker processes: 1 for ``mirrored``."""
        return self.workers if isinstance(self.workers, int) else len(self.workers)

    @property
    def is_multi_process(self) -> bool:
        """Whether the workers are processes that form a cluster, rather than devices of one process."""
        return self.strategy == "multi-worker"

    @property
    def replica_count(self) -> int:
        """Replicas that share a global batch, as far as the configuration tells: GPUs found later may add to it."""
        return self.worker_count if self.is_multi_process else self.devices or 1


class OutputConfig(Section):
    """Output, checkpoints, restarts and time limits."""

    dir: FilePath | None = Field(
        default=None,
        description="Run folder. null: `runs/<date>-<time>-<name>`; the name defaults to the configuration's.",
    )
    name: RunName | None = Field(default=None, description="Name of the run, used for its folder and in reports.")
    tensorboard: YesNo = Field(default=True, description="Write TensorBoard event files to the run folder.")
    checkpoints: YesNo = Field(
        default=True,
        description="Save a checkpoint after every epoch and keep the last two, so that the run can resume.",
    )
    checkpoint_every_s: NonNegative = Field(
        default=60.0, description="Seconds between checkpoints within an epoch. 0: only at the end of each epoch."
    )
    max_restarts: NonNegativeInt = Field(
        default=3,
        description="How many times to restart all workers after a failure. External kills have a separate budget of "
        "the same size. 0: never restart.",
    )
    hang_timeout_s: Positive | None = Field(
        default=None,
        description="Seconds without a finished step after which the workers are inspected and stopped. null: ten "
        "times the slowest recent step, at least 60.",
    )
    grace_period_s: NonNegative = Field(
        default=10.0, description="Seconds for workers to exit after a stop request before they are killed."
    )


class RunConfig(Section):
    """Everything that describes a run, in five sections.

    Raises:
        pydantic.ValidationError: A value is of the wrong type or out of range, or two keys contradict each other.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig()
    run: OutputConfig = OutputConfig()

    @model_validator(mode="after")
    def _keys_agree(self) -> RunConfig:
        from tfmp.config.checks import contradictions

        if found := contradictions(self):
            raise PydanticCustomError("contradiction", "{text}", {"text": found[0].what, "found": found})
        return self
