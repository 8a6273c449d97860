"""The schema holds the documented defaults, refuses keys that contradict each other, and is documented in full."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tfmp.config import FlagValue, RunConfig, resolve, schema_keys
from tfmp.config.schema import ClusterConfig, TrainingConfig
from tfmp.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


def refusal(**keys: object) -> UsageError:
    """Resolve flags given as ``section__key=value`` and return the error they must raise."""
    dotted = [key.replace("__", ".") for key in keys]
    flags = [FlagValue(key, f"--{key}", value) for key, value in zip(dotted, keys.values(), strict=True)]
    with pytest.raises(UsageError) as caught:
        resolve(None, (), flags)
    assert caught.value.exit_code == 2
    return caught.value


def test_the_defaults_are_the_documented_run() -> None:
    config = RunConfig()
    assert config == resolve().config
    assert config.model.units == (128,)
    assert (config.training.epochs, config.training.batch_size, config.training.learning_rate) == (5, 256, 0.008)
    assert (config.training.optimizer, config.training.schedule, config.training.precision) == (
        "adam",
        "cosine",
        "float32",
    )
    assert (config.training.seed, config.training.validation_every, config.training.metric_names) == (
        0,
        1,
        ("accuracy",),
    )
    assert (config.cluster.strategy, config.cluster.workers, config.cluster.start_timeout_s) == (
        "multi-worker",
        1,
        300.0,
    )
    assert (config.run.dir, config.run.checkpoints, config.run.grace_period_s) == (None, True, 10.0)


def test_every_default_passes_its_own_rule() -> None:
    values: dict[str, dict[str, object]] = {}
    for key, info in schema_keys().items():
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = info.default
    assert RunConfig.model_validate(values) == RunConfig()


def test_a_configuration_does_not_change_after_the_fact() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().training.epochs = 3


@pytest.mark.parametrize("value", [True, "64", 64.5, None, float("nan"), float("inf"), [64]])
def test_python_values_follow_the_same_rules(value: object) -> None:
    with pytest.raises(ValidationError):
        TrainingConfig.model_validate({"batch_size": value})
    assert TrainingConfig.model_validate({"batch_size": 64.0}).batch_size == 64
    with pytest.raises(ValidationError, match="extra"):
        TrainingConfig.model_validate({"batchsize": 64})


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("model.dropout", 0.0, 1.0),
        ("model.l2", 0.0, -0.1),
        ("training.momentum", 0.0, 1.0),
        ("training.final_learning_rate_fraction", 1.0, 1.1),
        ("training.warmup_steps", 0, -1),
        ("training.validation_every", 0, -1),
        ("training.early_stopping_patience", 0, -1),
        ("training.plateau_factor", 0.1, 1.0),
        ("training.clipnorm", 0.1, 0.0),
        ("training.weight_decay", 0.0, -1e-9),
        ("training.steps_per_epoch", 1, 0),
        ("training.steps_per_execution", 1, 0),
        ("data.limit_validation", 1, 0),
        ("cluster.base_port", 1, 0),
        ("cluster.base_port", 65535, 65536),
        ("cluster.threads_per_worker", 1, 0),
        ("cluster.start_timeout_s", 0.1, 0.0),
        ("cluster.workers", 64, 65),
        ("run.grace_period_s", 0.0, -1.0),
    ],
)
def test_ranges_end_where_they_are_documented_to(key: str, good: object, bad: object) -> None:
    section, _, name = key.partition(".")
    assert getattr(getattr(resolve(None, (), [FlagValue(key, "--x", good)]).config, section), name) == good
    with pytest.raises(UsageError) as caught:
        resolve(None, (), [FlagValue(key, "--x", bad)])
    assert caught.value.what == f"{key}: expected {schema_keys()[key].type}, received {bad}"


def test_a_global_batch_smaller_than_the_replicas_is_refused_with_sizes_that_work() -> None:
    error = refusal(cluster__strategy="mirrored", cluster__devices=4, training__batch_size=2)
    assert error.what == (
        "training.batch_size: 4 replicas share the global batch: expected at least 4 samples, received 2"
    )
    assert error.where == "--training.batch_size (training.batch_size), --cluster.devices (cluster.devices)"
    assert error.hint == "set training.batch_size to 4 or 8"
    assert "3 workers share" in refusal(cluster__workers=3, training__batch_size=2).what


def test_a_batch_that_does_not_divide_is_fine() -> None:
    assert resolve(sets=["cluster.workers=3", "training.batch_size=64"]).config.cluster.replica_count == 3
    sets = ["cluster.strategy=mirrored", "cluster.devices=4", "training.batch_size=6"]
    assert resolve(sets=sets).config.cluster.replica_count == 4
    assert resolve(sets=["cluster.workers=3", "training.batch_size=3"]).config.training.batch_size == 3


@pytest.mark.parametrize("samples", [0, 3])
def test_fewer_samples_than_workers_name_both_numbers_and_places(tmp_path: Path, samples: int) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"data:\n  limit_train: {samples}\n")
    with pytest.raises(UsageError) as caught:
        resolve(file, (), [FlagValue("cluster.workers", "--workers", "4")])
    assert caught.value.what == (
        f"data.limit_train: expected at least one training sample for each of 4 workers, received {samples}"
    )
    assert caught.value.where == f"{file}:2 (data.limit_train), --workers (cluster.workers)"
    assert resolve(sets=["data.limit_train=4", "cluster.workers=4"]).config.data.limit_train == 4


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"cluster__strategy": "mirrored", "cluster__workers": 2}, "cluster.workers"),
        ({"cluster__strategy": "mirrored", "cluster__workers": "a:1,b:2"}, "cluster.workers"),
        ({"cluster__devices": 2}, "cluster.devices"),
        ({"cluster__collective": "nccl", "cluster__device": "cpu"}, "nccl"),
        ({"cluster__base_port": 5000, "cluster__workers": "a:1,b:2"}, "cluster.base_port"),
        ({"training__momentum": 0.9}, "adam"),
        ({"training__clipnorm": 1, "training__clipvalue": 1}, "clipnorm and clipvalue"),
        ({"training__early_stopping_patience": 2, "training__validation_every": 2}, "validation_every"),
        ({"training__plateau_patience": 2, "training__validation_every": 0, "training__schedule": "constant"},
         "validation_every"),
        ({"training__plateau_patience": 2}, "cosine"),
        ({"training__schedule": "exponential"}, "final_learning_rate_fraction"),
        ({"training__loss": "own.losses:focal"}, "own.losses:focal"),
        ({"training__metrics": ["auc"]}, "auc"),
        ({"training__loss": "huber", "training__metrics": ["accuracy"]}, "accuracy"),
        ({"training__loss": "binary_crossentropy", "training__metrics": ["r2_score"]}, "r2_score"),
        ({"data__dataset": "csv", "data__path": "a.csv"}, "data.target"),
        ({"data__target": ["y"]}, "csv"),
        ({"data__image_size": [8, 8], "data__dataset": "csv", "data__path": "a", "data__target": "y"}, "images"),
        ({"data__factory": "m:load", "data__dataset": "npz"}, "data.dataset"),
        ({"data__factory": "m:load", "data__classes": 3}, "data.classes"),
        ({"data__dataset": "idx"},
         "data.train_images, data.train_labels, data.validation_images, data.validation_labels"),
        ({"data__dataset": "idx", "data__train_images": "a", "data__train_labels": "b", "data__validation_images": "c"},
         "data.validation_labels"),
        ({"data__dataset": "npz"}, "data.path"),
        ({"data__path": "a.npz"}, "npz"),
        ({"data__train_images": "a"}, "idx"),
        ({"model__factory": "m:build", "model__units": [3]}, "model.units"),
        ({"model__factory": "m:build", "model__dropout": 0.5}, "model.dropout"),
    ],
)  # fmt: skip
def test_keys_that_contradict_each_other_are_refused_by_name(keys: dict[str, object], fault: str) -> None:
    error = refusal(**keys)
    assert len(error.what.splitlines()) == 1
    assert fault in error.what
    assert error.hint


@pytest.mark.parametrize(
    "sets",
    [
        ["cluster.strategy=mirrored", "cluster.devices=2"],
        ["cluster.base_port=65532", "cluster.workers=4"],
        ["training.momentum=0.9", "training.optimizer=sgd"],
        ["training.momentum=0.9", "training.optimizer=rmsprop"],
        ["training.plateau_patience=2", "training.schedule=constant"],
        ["training.schedule=exponential", "training.final_learning_rate_fraction=0.01"],
        ["training.early_stopping_patience=0"],
        ["data.dataset=npz", "data.path=a.npz"],
        ["model.factory=pkg.models:build", "training.loss=huber", "training.metrics=[auc]"],
        ["training.loss=huber", "training.metrics=[r2_score,own.metrics:spread]"],
        ["data.dataset=csv", "data.path=a.csv", "data.target=price", "data.columns=[rooms,age]"],
        ["data.dataset=images", "data.path=pictures", "data.validation_fraction=0.2", "data.image_size=[8,8]"],
        ["data.factory=own.data:load", "data.limit_train=100"],
        ["training.loss=mse", "training.metrics=[mae]"],
        ["cluster.collective=nccl"],
    ],
)
def test_keys_that_belong_together_are_taken(sets: list[str]) -> None:
    for text in sets:
        key, _, value = text.partition("=")
        assert resolve(sets=sets).origin(key) == "--set", value


def test_workers_are_a_number_or_addresses() -> None:
    cluster = resolve(
        flags=[FlagValue("cluster.workers", "--workers", "a:1, 10.0.0.2:2222,[::1]:65535")]
    ).config.cluster
    assert cluster.worker_addresses == ("a:1", "10.0.0.2:2222", "[::1]:65535")
    assert (cluster.worker_count, cluster.replica_count) == (3, 3)
    ipv6 = resolve(flags=[FlagValue("cluster.workers", "--workers", "[::1]:80, [::2]:81")]).config.cluster
    assert ipv6.worker_addresses == ("[::1]:80", "[::2]:81")
    local = resolve(flags=[FlagValue("cluster.workers", "--workers", "4")]).config.cluster
    assert (local.worker_addresses, local.worker_count, local.replica_count) == (None, 4, 4)
    assert ClusterConfig().replica_count == 1


@pytest.mark.parametrize(
    ("workers", "hint"),
    [
        ("a:1,a:1", "worker[1]: expected an address of its own, received a:1, which worker[0] already has"),
        ("12:30", 'worker[0]: expected an IPv4 address of four numbers in 0..255, received "12:30"'),
        (["a"], 'worker[0]: expected host:port, received "a"; add the port, for example a:2222'),
        ("a:0", 'worker[0]: expected a port in 1..65535, received "a:0"'),
        ("a:65536", 'worker[0]: expected a port in 1..65535, received "a:65536"'),
        ("http://a:1", 'worker[0]: expected host:port, received "http://a:1"; leave out the scheme and the path'),
        ([7], "write each address as host:port"),
        ([], "expected 1 to 64 addresses, received 0"),
        ("1.5", "write a whole number"),
    ],
)
def test_malformed_workers_are_refused(workers: object, hint: str) -> None:
    error = refusal(cluster__workers=workers)
    assert error.what.startswith("cluster.workers: expected an integer from 1 to 64 or a list of host:port addresses, ")
    assert error.hint == hint


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("models.py:build", "give the module, not its file: models:build"),
        ("src/models.py:build", "give the module, not its file: src.models:build"),
        ("models", "write it as package.module:function"),
        ("models:", "write it as package.module:function"),
        ("a..b:c", "write it as package.module:function"),
        ("a:class", "write it as package.module:function"),
        ("os.system('x'):f", "write it as package.module:function"),
    ],
)
def test_a_malformed_reference_is_refused(reference: str, hint: str) -> None:
    assert refusal(model__factory=reference).hint == hint


def test_run_names_make_folder_names() -> None:
    assert resolve(flags=[FlagValue("run.name", "--name", "é 1")]).config.run.name == "é 1"
    assert refusal(run__name="a/b").hint == "a name has no slashes: set run.dir to choose the folder"
    assert refusal(run__name="x" * 101).hint == "use at most 100 printable characters"


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve(sets=["run.dir=~/runs"]).config.run.dir == Path("/home/someone/runs")


def test_every_key_is_described() -> None:
    sections = RunConfig.model_fields
    assert list(sections) == ["model", "data", "training", "cluster", "run"]
    expected = [f"{name}.{key}" for name in sections for key in type(getattr(RunConfig(), name)).model_fields]
    assert list(schema_keys()) == expected
    for info in schema_keys().values():
        assert info.description.endswith(".")
        assert info.type
    assert schema_keys()["training.optimizer"].choices[:2] == ("sgd", "rmsprop")
    assert schema_keys()["cluster.private_network"].type == "one of auto, on, off"
    assert schema_keys()["training.clipnorm"].type == "a number > 0 or null"


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("mnist", {"cluster.workers": 4}),
        ("mnist-2-workers", {"cluster.workers": 2}),
        ("mnist-mirrored", {"cluster.strategy": "mirrored", "cluster.devices": 2}),
        (
            "smoke",
            {"data.limit_train": 2000, "data.limit_validation": 1000, "training.epochs": 1, "cluster.workers": 2},
        ),
    ],
)
def test_a_shipped_configuration_changes_only_what_it_says(name: str, changed: dict[str, object]) -> None:
    file = ROOT / "configs" / f"{name}.yaml"
    resolved = resolve(file)
    given = {key for key in schema_keys() if resolved.origin(key) != "default"}
    assert given == set(changed)
    for key, value in changed.items():
        section, _, leaf = key.partition(".")
        assert getattr(getattr(resolved.config, section), leaf) == value
    head = file.read_text(encoding="utf-8").splitlines()
    assert head[0] == f"# tfmp train configs/{name}.yaml"
    assert any(line.startswith("# expected: val_accuracy about 0.") for line in head)


def test_every_shipped_configuration_loads() -> None:
    files = sorted((ROOT / "configs").glob("*.yaml"))
    assert len(files) >= 4
    for file in files:
        resolve(file)
