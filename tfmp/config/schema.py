"""The schema of a run: every key, its type, default, unit and reason.

A :class:`RunConfig` is immutable and complete: who holds one needs no other source of settings. Values reach it
through the readers of :mod:`tfmp.config.types`, so that a number in a file, in ``--set`` and in a flag is the same
number; rules between keys stand in :mod:`tfmp.config.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tfmp.config import choices
from tfmp.config.types import (
    read_bool,
    read_int,
    read_list,
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
    """What a key expects, in the words of errors and of the reference: ``expected <text>, received …``."""

    text: str


T = TypeVar("T")

Count: TypeAlias = Annotated[int, Field(ge=1), BeforeValidator(read_int), Expect("an integer ≥ 1")]
NonNegativeInt: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(read_int), Expect("an integer ≥ 0")]
# Zero passes the type so that the rule between keys can refuse it together with the number of workers.
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
# Made absolute, so that a run folder's configuration means the same files from wherever it is read.
DataPath: TypeAlias = Annotated[Path, BeforeValidator(read_path), AfterValidator(Path.absolute), Expect("a path")]
Reference: TypeAlias = Annotated[str, BeforeValidator(read_reference), Expect("a package.module:function")]
RunName: TypeAlias = Annotated[str, BeforeValidator(read_run_name), Expect("a name without slashes")]
Word: TypeAlias = Annotated[T, BeforeValidator(read_word)]
List: TypeAlias = Annotated[tuple[T, ...], BeforeValidator(read_list)]
Workers: TypeAlias = Annotated[
    int | tuple[str, ...],
    BeforeValidator(read_workers),
    Expect("an integer from 1 to 64 or a list of host:port addresses"),
]


class Section(BaseModel):
    """What all sections have in common: no key beyond the schema, no change after the fact."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """The network: an MLP of Dense layers, or the user's own Keras model."""

    units: List[Count] = Field(
        default=(128,), description="Units of each hidden Dense layer; `[]` makes a linear model."
    )
    activation: Word[choices.Activation] = Field(
        default="relu", description="Activation of the hidden layers, a Keras name."
    )
    dropout: BelowOne = Field(
        default=0.0, description="Fraction of each hidden layer's outputs dropped while training."
    )
    batch_normalization: YesNo = Field(
        default=False, description="Batch normalization between each hidden Dense layer and its activation."
    )
    l2: NonNegative = Field(default=0.0, description="Weight of the L2 penalty on the kernels, added to the loss.")
    factory: Reference | None = Field(
        default=None,
        description="Function that returns the user's own Keras model; the other model keys then stay at their "
        "defaults, as nothing would read them.",
    )


class DataConfig(Section):
    """The samples. Relative paths start from the current directory, not from the file that names them."""

    dataset: Word[choices.Dataset] = Field(
        default="mnist",
        description="`mnist` comes with tfmp; `idx` reads four IDX files (gzip or not); `npz` reads one file.",
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
        default=None, description="NPZ file with the arrays `x_train`, `y_train`, `x_test`, `y_test` (`npz` only)."
    )
    classes: Count | None = Field(
        default=None, description="Number of classes. null: 10 for `mnist`, otherwise the largest label plus one."
    )
    limit_train: SampleLimit | None = Field(
        default=None, description="Use only the first so many training samples, at least one a worker. null: all."
    )
    limit_validation: Count | None = Field(
        default=None, description="Use only the first so many validation samples. null: all."
    )
    shuffle: YesNo = Field(
        default=True,
        description="Draw a new order of the training samples each epoch, a function of seed and epoch alone.",
    )
    cache_dir: FilePath | None = Field(
        default=None, description="Directory for unpacked data. null: the user's cache directory."
    )


class TrainingConfig(Section):
    """The optimization. Batch sizes are global: they do not change with the number of workers."""

    epochs: Count = Field(default=5, description="Passes over the training samples.")
    batch_size: Count = Field(
        default=256,
        description="Global batch: samples of one step over all replicas, shared out among them. Any size from "
        "the number of replicas on is exact: gradients are weighted by samples.",
    )
    steps_per_epoch: Count | None = Field(
        default=None, description="Steps of one epoch. null: enough to see every sample once, the last batch short."
    )
    optimizer: Word[choices.Optimizer] = Field(default="adam", description="Keras optimizer.")
    learning_rate: Positive = Field(default=0.008, description="Learning rate after the warm-up.")
    schedule: Word[choices.Schedule] = Field(
        default="cosine", description="How the learning rate falls from the end of the warm-up to the last step."
    )
    warmup_steps: NonNegativeInt = Field(
        default=0, description="Steps over which the learning rate rises linearly from 0. 0: none."
    )
    final_learning_rate_fraction: Fraction = Field(
        default=0.0, description="Where the schedule ends, as a fraction of `learning_rate`; above 0 for `exponential`."
    )
    momentum: BelowOne = Field(default=0.0, description="Momentum (`sgd` and `rmsprop` only).")
    weight_decay: NonNegative | None = Field(
        default=None,
        description="Decoupled weight decay. null: the optimizer's own default (`adamw` 0.004, others none).",
    )
    clipnorm: Positive | None = Field(
        default=None, description="Largest L2 norm of each variable's gradient; at most one of the three clip keys."
    )
    global_clipnorm: Positive | None = Field(default=None, description="Largest L2 norm of all gradients together.")
    clipvalue: Positive | None = Field(default=None, description="Largest absolute value of a gradient's element.")
    loss: Word[choices.Loss] = Field(
        default="sparse_categorical_crossentropy",
        description="Keras loss on integer labels; the built-in MLP has one output a class and needs the default.",
    )
    metrics: List[Word[choices.Metric]] = Field(
        default=("accuracy",), description="Keras metrics of training and validation; may be empty."
    )
    precision: Word[choices.Precision] = Field(
        default="float32",
        description="Keras dtype policy; the mixed ones keep float32 weights, float16 scales the loss.",
    )
    seed: Seed = Field(default=0, description="Seed of the initial weights, the order of samples and dropout.")
    steps_per_execution: Count | None = Field(
        default=None,
        description="Steps that one call of the compiled function runs; changes speed only, and how often callbacks of "
        "your own that act on batches are called. null: tfmp chooses.",
    )
    jit_compile: YesNo | None = Field(
        default=None,
        description="Compile the whole step with XLA. null: the optimizer's part of it, for the built-in model in runs "
        "that are long enough to gain from it.",
    )
    validation_every: NonNegativeInt = Field(
        default=1, description="Epochs between validations. 0: only after the last epoch."
    )
    validation_batch_size: Count = Field(default=1000, description="Global batch of validation, in samples.")
    early_stopping_patience: NonNegativeInt | None = Field(
        default=None, description="Stop after so many epochs without a lower `val_loss`. null: never."
    )
    plateau_patience: NonNegativeInt | None = Field(
        default=None,
        description="Lower the learning rate after so many epochs without a lower `val_loss`. null: never.",
    )
    plateau_factor: Factor = Field(default=0.5, description="What the learning rate is multiplied by on a plateau.")
    callbacks: List[Reference] = Field(
        default=(),
        description="Functions without arguments, as package.module:function, that each return a Keras Callback.",
    )


class ClusterConfig(Section):
    """Who computes: the workers, their devices and the network between them."""

    strategy: Word[choices.Strategy] = Field(
        default="multi-worker",
        description="`multi-worker`: one process a worker; `mirrored`: one process, several devices.",
    )
    workers: Workers = Field(
        default=1,
        description="Number of workers on this machine (1 to 64), or each worker's `host:port` in rank order.",
    )
    devices: Count | None = Field(
        default=None, description="Replicas of `mirrored`: logical CPU devices or GPUs. null: every GPU, or one CPU."
    )
    device: Word[choices.Device] = Field(
        default="auto", description="Kind of device. `auto`: GPUs where there are any."
    )
    collective: Word[choices.Collective] = Field(
        default="auto",
        description="How gradients are summed. `shm`: memory that the workers of one host share; `ring`: gRPC; "
        "`hierarchical`: `shm` within each host, `ring` between them; `nccl`: GPUs only; `auto`: what is fastest.",
    )
    base_port: Port | None = Field(
        default=None, description="Port of worker 0; worker i listens on base_port + i. null: free ports."
    )
    private_network: Word[choices.Switch] = Field(
        default="auto",
        description="Run local workers in a network of their own, as TensorFlow's server has no "
        "authentication and listens on every interface. `auto`: where the kernel allows it.",
    )
    threads_per_worker: Count | None = Field(
        default=None, description="TensorFlow threads of each worker. null: usable cores divided by local workers."
    )
    start_timeout_s: Positive = Field(
        default=300.0, description="Seconds in which every worker must have joined, before the missing ones are named."
    )
    rendezvous: Text | None = Field(
        default=None,
        description="`host:port` of worker 0, at which workers on several hosts learn each other's addresses; for "
        "launchers that know none, such as `mpirun`.",
    )
    heartbeat_timeout_s: Positive = Field(
        default=30.0,
        description="Seconds without a word from another host, after which its worker counts as lost.",
    )
    token: Text | None = Field(
        default=None,
        description="Shared secret of the hosts of one cluster: launchers without it cannot join. Never shown, nor "
        "written to the run folder. It does not protect TensorFlow's own traffic.",
    )

    @property
    def worker_addresses(self) -> tuple[str, ...] | None:
        """Each worker's ``host:port`` in rank order; ``None`` for local workers, whose ports come later."""
        return None if isinstance(self.workers, int) else self.workers

    @property
    def worker_count(self) -> int:
        """Number of worker processes: 1 for ``mirrored``."""
        return self.workers if isinstance(self.workers, int) else len(self.workers)

    @property
    def replica_count(self) -> int:
        """Replicas that share a global batch as far as the configuration says: GPUs found later may add to it."""
        return self.devices or 1 if self.strategy == "mirrored" else self.worker_count


class OutputConfig(Section):
    """What the run leaves behind, and how it ends."""

    dir: FilePath | None = Field(
        default=None,
        description="Run folder. null: `runs/<date>-<time>-<name>`, with the config file's stem for a name.",
    )
    name: RunName | None = Field(default=None, description="Name of the run, in its folder's name and in reports.")
    tensorboard: YesNo = Field(default=True, description="Write TensorBoard event files to the run folder.")
    checkpoints: YesNo = Field(
        default=True, description="Save a checkpoint after every epoch and keep the last two, from which a run resumes."
    )
    checkpoint_every_s: NonNegative = Field(
        default=60.0, description="Seconds between two checkpoints inside an epoch. 0: only at its end."
    )
    max_restarts: NonNegativeInt = Field(
        default=3,
        description="How often all workers are started again after one has failed; as often again after one was "
        "killed or told to leave. 0: never.",
    )
    hang_timeout_s: Positive | None = Field(
        default=None,
        description="Seconds without a finished step after which the workers are looked into and stopped. null: ten "
        "times the slowest recent step, at least 60.",
    )
    grace_period_s: NonNegative = Field(
        default=10.0, description="Seconds that workers get to end on their own before they are killed."
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
