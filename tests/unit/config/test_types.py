"""A value means what the user wrote, whatever YAML version reads it, and the same in a file, in --set and in a flag."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfmp.config import FlagValue, resolve
from tfmp.config.types import Scalar, read_int, read_number, shown
from tfmp.errors import UsageError


def from_file(tmp_path: Path, key: str, text: str) -> object:
    section, _, name = key.partition(".")
    file = tmp_path / "run.yaml"
    file.write_text(f"{section}:\n  {name}: {text}\n", encoding="utf-8")
    return getattr(getattr(resolve(file).config, section), name)


def error_from_file(tmp_path: Path, key: str, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        from_file(tmp_path, key, text)
    assert caught.value.exit_code == 2
    assert caught.value.where == f"{tmp_path}/run.yaml:2"
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1E-3", 0.001), ("1.0e3", 1000.0), ("1e+3", 1000.0), (".5", 0.5), ("2.", 2.0), ("1", 1.0)],
)
def test_every_decimal_notation_is_a_number(tmp_path: Path, text: str, value: float) -> None:
    read = from_file(tmp_path, "training.learning_rate", text)
    assert read == value
    assert type(read) is float


@pytest.mark.parametrize(
    ("text", "received", "hint"),
    [
        ("'1e-3'", "'1e-3'", "remove the quotes"),
        (".nan", ".nan", "write a finite number"),
        ("nan", "nan", "write a finite number"),
        ("-.inf", "-.inf", "write a finite number"),
        ("1e400", "1e400", "write a finite number"),
        ("true", "true", "YAML reads true as a boolean; write a number"),
        ("-1", "-1", None),
        ("0", "0", None),
        ("0,01", "0,01", "write 0.01"),
        ("fast", "fast", None),
    ],
)
def test_what_is_no_usable_rate_is_refused_with_key_and_value(
    tmp_path: Path, text: str, received: str, hint: str | None
) -> None:
    error = error_from_file(tmp_path, "training.learning_rate", text)
    assert error.what == f"training.learning_rate: expected a number > 0, received {received}"
    assert error.hint == hint


@pytest.mark.parametrize(("text", "value"), [("64", 64), ("64.0", 64), ("1e2", 100), ("+8", 8), ("0x10", 16)])
def test_a_count_may_be_written_as_a_whole_float(tmp_path: Path, text: str, value: int) -> None:
    read = from_file(tmp_path, "training.batch_size", text)
    assert read == value
    assert type(read) is int


@pytest.mark.parametrize(
    ("text", "received", "hint"),
    [
        ("64.5", "64.5", "write a whole number"),
        ("012", "012", "YAML 1.1 reads a leading zero as octal; write 12"),
        ("08", "08", "YAML 1.1 reads a leading zero as octal; write 8"),
        ("0o12", "0o12", "write a decimal number"),
        ("12:30", "12:30", None),
        ("1_000", "1_000", None),
        ("1,000", "1,000", None),
        ("'64'", "'64'", "remove the quotes"),
        ("yes", "yes", "YAML reads yes as a boolean; write a number"),
        ("null", "null", "remove the key to use the default, 256"),
        ("1e300", "1e300", "write a smaller number"),
        ("9" * 5000, "9" * 59 + "…", "write a finite number"),
        ("[64]", "a list of 1", None),
        ("{a: 64}", "a mapping", None),
        ("-3", "-3", None),
    ],
)
def test_a_count_that_yaml_readers_disagree_about_is_refused(
    tmp_path: Path, text: str, received: str, hint: str | None
) -> None:
    error = error_from_file(tmp_path, "training.batch_size", text)
    assert error.what == f"training.batch_size: expected an integer ≥ 1, received {received}"
    assert error.hint == hint


@pytest.mark.parametrize("text", ["yes", "Yes", "YES", "on", "true", "True"])
def test_boolean_words_are_booleans_for_a_boolean_key(tmp_path: Path, text: str) -> None:
    assert from_file(tmp_path, "training.jit_compile", text) is True


@pytest.mark.parametrize("text", ["no", "off", "false", "FALSE"])
def test_words_for_no_are_false(tmp_path: Path, text: str) -> None:
    assert from_file(tmp_path, "data.shuffle", text) is False


@pytest.mark.parametrize(
    ("text", "hint"),
    [('"no"', "remove the quotes"), ("0", "write no"), ("1", "write yes"), ("y", None), ("nope", None)],
)
def test_what_only_looks_boolean_is_refused(tmp_path: Path, text: str, hint: str | None) -> None:
    assert error_from_file(tmp_path, "data.shuffle", text).hint == hint


def test_one_epoch_is_not_yes(tmp_path: Path) -> None:
    assert "training.epochs" in error_from_file(tmp_path, "training.epochs", "yes").what
    with pytest.raises(UsageError, match="received true"):
        resolve(flags=[FlagValue("training.epochs", "--epochs", True)])


@pytest.mark.parametrize("key", ["training.optimizer", "run.dir", "run.name", "data.cache_dir"])
def test_a_text_key_names_yamls_boolean(tmp_path: Path, key: str) -> None:
    error = error_from_file(tmp_path, key, "off")
    assert error.what.startswith(f"{key}: expected ")
    assert error.hint == 'YAML reads off as a boolean; quote it ("off") if it is meant as text'


def test_a_switch_offers_on_and_off_unquoted(tmp_path: Path) -> None:
    for text, word in [("on", "on"), ("off", "off"), ("Off", "off"), ('"off"', "off"), ("auto", "auto")]:
        assert from_file(tmp_path, "cluster.private_network", text) == word
    assert error_from_file(tmp_path, "cluster.private_network", "yes").hint == "write on"
    assert error_from_file(tmp_path, "cluster.private_network", "false").hint == "write off"


def test_text_keeps_its_spelling(tmp_path: Path) -> None:
    for text, name in [
        ("3.10", "3.10"),
        ("012", "012"),
        ("2026-01-02", "2026-01-02"),
        ("'off'", "off"),
        ("1e3", "1e3"),
    ]:
        assert from_file(tmp_path, "run.name", text) == name
    assert from_file(tmp_path, "run.name", "~") is None


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.5", "'1e-3'", ".nan", "-1", "true", "012", "12:30", "1_000", "x"])
def test_file_set_and_flag_agree(tmp_path: Path, text: str) -> None:
    key = "training.learning_rate"

    def outcome(read: object) -> object:
        try:
            return read() if callable(read) else None
        except UsageError:
            return "refused"

    flag = FlagValue(key, "--learning-rate", text)
    results = [
        outcome(lambda: from_file(tmp_path, key, text)),
        outcome(lambda: resolve(sets=[f"{key}={text}"]).config.training.learning_rate),
        outcome(lambda: resolve(flags=[flag]).config.training.learning_rate),
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("seed", ["1.5", "abc", "-1", "4294967296", "true", ""])
def test_a_seed_that_keras_would_not_take_is_refused(seed: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(flags=[FlagValue("training.seed", "--seed", seed)])
    assert caught.value.where == "--seed"
    assert caught.value.what.startswith("training.seed: expected an integer from 0 to 4294967295, received ")


def test_a_quoted_seed_is_refused_and_the_largest_taken(tmp_path: Path) -> None:
    assert error_from_file(tmp_path, "training.seed", '"7"').hint == "remove the quotes"
    assert from_file(tmp_path, "training.seed", "4294967295") == 4294967295


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_is_read_back_bit_for_bit(value: float) -> None:
    assert read_number(Scalar(repr(value))) == value
    assert math.copysign(1, read_number(Scalar(repr(value)))) == math.copysign(1, value)


@given(st.integers(min_value=-(2**53), max_value=2**53))
def test_every_integer_is_read_back(value: int) -> None:
    assert read_int(Scalar(str(value))) == value


@given(st.text(max_size=200))
def test_any_text_is_read_as_a_finite_number_or_refused(text: str) -> None:
    try:
        number = read_number(Scalar(text))
    except ValueError:
        return
    assert math.isfinite(number)


@given(st.text(max_size=500))
def test_a_received_value_is_shown_on_one_short_line(text: str) -> None:
    line = shown(Scalar(text, "shell"))
    assert line.isprintable()
    assert len(line) <= 60 * 10 + 2
