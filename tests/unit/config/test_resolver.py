"""Each value comes from the strongest layer, keeps its origin, and a wrong key finds the right one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tfmp.config import FlagValue, load_run_config, resolve, schema_keys
from tfmp.config.dump import value_text
from tfmp.config.resolver import Resolved
from tfmp.errors import UsageError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(file: Path | None = None, sets: tuple[str, ...] = (), flags: tuple[FlagValue, ...] = ()) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve(file, sets, flags)
    assert caught.value.exit_code == 2
    return caught.value


def test_flags_beat_set_beats_file_beats_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "training:\n  epochs: 2\n  batch_size: 32\n  seed: 3\n")
    flags = [FlagValue("training.epochs", "--epochs", "4"), FlagValue("run.name", "--name", None)]
    resolved = resolve(file, ["training.epochs=3", "training.batch_size=64", "training.batch_size=128"], flags)
    training = resolved.config.training
    assert (training.epochs, training.batch_size, training.seed, training.learning_rate) == (4, 128, 3, 0.008)
    assert resolved.origin("training.epochs") == "--epochs"
    assert resolved.origin("training.batch_size") == "--set"
    assert resolved.origin("training.seed") == f"{file}:4"
    assert resolved.origin("training.learning_rate") == "default"
    assert resolved.origin("run.name") == "default"
    assert set(resolved.origins) == set(schema_keys())
    with pytest.raises(KeyError):
        resolved.origin("training.nothing")


def test_a_file_value_that_a_flag_overrides_does_not_matter(tmp_path: Path) -> None:
    file = write(tmp_path, "training: {batch_size: 012}\n")
    assert resolve(file, (), [FlagValue("training.batch_size", "--batch-size", 64)]).config.training.batch_size == 64


def test_lists_are_read_from_every_layer(tmp_path: Path) -> None:
    file = write(tmp_path, "model:\n  units:\n    - 64\n    - 1e1\n")
    assert resolve(file).config.model.units == (64, 10)
    assert resolve(sets=["model.units=[128, 64]"]).config.model.units == (128, 64)
    assert resolve(sets=["model.units=[]"]).config.model.units == ()
    for value in ("[8, 4]", (8, 4), ["8", "4"]):
        assert resolve(flags=[FlagValue("model.units", "--units", value)]).config.model.units == (8, 4)
    error = refusal(sets=("model.units=128, 64",))
    assert error.what == "model.units: expected a list, each item an integer ≥ 1, received 128, 64"
    assert error.hint == "write [128, 64]"
    item = refusal(write(tmp_path, "model:\n  units:\n    - 64\n    - 0.5\n"))
    assert item.what == "model.units[1]: expected an integer ≥ 1, received 0.5"
    assert item.where == f"{tmp_path}/run.yaml:4"


def test_flag_text_is_taken_verbatim_by_text_keys(tmp_path: Path) -> None:
    for name in ("off", "null-ish", "42", "a: b", "'quoted'"):
        assert resolve(flags=[FlagValue("run.name", "--name", name)]).config.run.name == name
    assert resolve(flags=[FlagValue("run.dir", "--run-dir", tmp_path)]).config.run.dir == tmp_path
    assert refusal(flags=(FlagValue("run.dir", "--run-dir", ""),)).what.endswith("received ''")


@pytest.mark.parametrize(
    ("content", "unknown", "nearest"),
    [
        ("learing_rate: 0.1\n", "learing_rate", "training.learning_rate"),
        ("train: {workers: 2}\n", "train.workers", "cluster.workers"),
        ("workers: 2\n", "workers", "cluster.workers"),
        ("training: {learning-rate: 1}\n", "training.learning-rate", "training.learning_rate"),
        ("training: {epoch: 1}\n", "training.epoch", "training.epochs"),
        ("training: {units: [1]}\n", "training.units", "model.units"),
        ("training: {validation_labels: a}\n", "training.validation_labels", "data.validation_labels"),
        ("lr: 0.1\n", "lr", "training.learning_rate"),
        ("training: {lr: 0.1}\n", "training.lr", "training.learning_rate"),
        ("Batch_Size: 3\n", "Batch_Size", "training.batch_size"),
    ],
)
def test_an_unknown_key_finds_the_nearest_valid_one(tmp_path: Path, content: str, unknown: str, nearest: str) -> None:
    error = refusal(write(tmp_path, content))
    section, _, name = nearest.partition(".")
    assert error.what == f"unknown key {unknown}"
    assert error.where == f"{tmp_path}/run.yaml:1"
    assert error.hint == f"did you mean {nearest}? (key {name} below {section}:)"


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        ("trainng: {epochs: 3}\n", "unknown section trainng", "did you mean training?"),
        ("trainng:\n", "unknown section trainng", "did you mean training?"),
        ("qqqq: 3\n", "unknown key qqqq", "the sections are model, data, training, cluster, run"),
        ("run: {zzzz: 3}\n", "unknown key run.zzzz",
         "the keys of run are dir, name, tensorboard, checkpoints, checkpoint_every_s, max_restarts, hang_timeout_s, "
         "grace_period_s"),
        ("training.epochs: 3\n", "unknown key training.epochs",
         "write training: on a line of its own, and epochs indented below it"),
        ("training: 3\n", "training: expected a section with its keys indented below it, received 3", None),
    ],
)  # fmt: skip
def test_a_misplaced_or_misspelt_section_is_told(tmp_path: Path, content: str, what: str, hint: str | None) -> None:
    error = refusal(write(tmp_path, content))
    assert (error.what, error.where, error.hint) == (what, f"{tmp_path}/run.yaml:1", hint)


def test_set_needs_a_key_and_a_value() -> None:
    assert refusal(sets=("training.epochs",)).what == "--set: expected KEY=VALUE, received training.epochs"
    assert refusal(sets=("=3",)).where == "--set"
    unknown = refusal(sets=("epochs=3",))
    assert (unknown.where, unknown.hint) == ("--set epochs", "did you mean training.epochs?")
    assert refusal(sets=("training={epochs: 3}",)).hint == "give a key of the section, such as training.epochs"
    wrong = refusal(sets=("training.epochs=x",))
    assert (wrong.where, wrong.what) == (
        "--set training.epochs",
        "training.epochs: expected an integer ≥ 1, received x",
    )


def test_five_errors_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    file = write(
        tmp_path, "qqqq: 1\ntraining:\n  epochs: x\n  seed: x\n  momentum: x\n  batch_size: x\n  clipnorm: x\n"
    )
    lines = refusal(file).what.splitlines()
    assert lines[0] == "unknown key qqqq"
    assert lines[1] == f"  also:  training.epochs: expected an integer ≥ 1, received x (at {file}:3)"
    assert len(lines) == 6
    assert lines[5] == "  and 1 more"


def test_a_misspelt_word_finds_the_nearest_choice(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, "training: {optimizer: adamm}\n")).hint == "did you mean adam?"
    assert refusal(write(tmp_path, "training: {metrics: [acuracy]}\n")).hint == "did you mean accuracy?"


def same_after_a_round_trip(tmp_path: Path, resolved: Resolved) -> None:
    for origins in (False, True):
        file = write(tmp_path, resolved.to_yaml(origins=origins))
        assert resolve(file).config == resolved.config
    (tmp_path / "config.yaml").write_text(resolved.to_yaml(), encoding="utf-8")
    assert load_run_config(tmp_path) == resolved.config
    assert load_run_config(tmp_path / "config.yaml") == resolved.config


def test_the_resolved_yaml_loads_back_to_the_same_configuration(tmp_path: Path) -> None:
    same_after_a_round_trip(tmp_path, resolve())
    sets = [
        "run.name='3.10'", "run.dir=a b: #c\\n", "training.learning_rate=1e-05", "model.units=[]", "data.limit_train=7",
        "cluster.workers=[\"h-1:2222\", \"[::1]:80\"]", "cluster.private_network=off", "data.cache_dir='x\"~y'",
        "training.callbacks=[a.b:c]",
    ]  # fmt: skip
    same_after_a_round_trip(tmp_path, resolve(sets=sets))


def test_origins_stand_behind_the_values() -> None:
    text = resolve(sets=["training.epochs=3"], flags=[FlagValue("training.seed", "--seed", 1)]).to_yaml(origins=True)
    assert "  epochs: 3  # --set\n" in text
    assert "  seed: 1  # --seed\n" in text
    assert "  batch_size: 256  # default\n" in text


def test_every_yaml_reader_reads_the_numbers_and_words_alike() -> None:
    for value in (
        1e-05,
        1e16,
        1.5e-7,
        0.008,
        300.0,
        "off",
        "yes",
        "n",
        "1e3",
        "012",
        "~",
        "null",
        "a#b",
        "é\u2028\x85",
        "",
    ):
        assert yaml.safe_load(value_text(value)) == value


@given(st.text(max_size=30))
def test_any_text_survives_the_round_trip(text: str) -> None:
    assert yaml.safe_load(value_text(text)) == text


def test_importing_the_package_costs_no_pydantic_and_no_tensorflow() -> None:
    code = (
        "import sys, tfmp.config, tfmp.config.choices\n"
        "heavy = {'pydantic', 'yaml', 'tensorflow', 'keras', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "tfmp.config.resolve()\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=root)


def test_the_package_exports_what_it_says() -> None:
    import tfmp.config as package

    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing
