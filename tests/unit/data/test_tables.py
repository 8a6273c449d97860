"""CSV tables as arrays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.data.test_cache import Data
from tfmp.data.cache import prepare
from tfmp.data.tables import read_table, split_columns
from tfmp.errors import UsageError

ROWS = "rooms,age,price,kind\n3,10,1.5,flat\n2,0.5,2,house\n4,7,3.5,flat\n"


def table(tmp_path: Path, text: str = ROWS, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_are_one_array_and_a_number_is_the_target(tmp_path: Path) -> None:
    train, validation = split_columns(read_table(table(tmp_path)), None, ["price"], ["age", "rooms"])
    assert validation is None
    assert train.x.tolist() == [[10, 3], [0.5, 2], [7, 4]]
    assert (train.y.tolist(), train.y.dtype) == ([1.5, 2.0, 3.5], "float64")


def test_text_to_predict_becomes_class_numbers_over_both_tables(tmp_path: Path) -> None:
    other = table(tmp_path, "rooms,age,price,kind\n1,1,1,barn\n", "b.csv")
    train, validation = split_columns(read_table(table(tmp_path)), read_table(other), ["kind"], None)
    assert validation is not None
    assert (train.y.tolist(), validation.y.tolist()) == ([1, 2, 1], [0])
    assert train.x.shape == (3, 3)


def test_text_among_the_inputs_makes_one_array_a_column(tmp_path: Path) -> None:
    train, _ = split_columns(read_table(table(tmp_path)), None, ["price"], None)
    assert {name: column.tolist() for name, column in train.x.items()} == {
        "rooms": [3, 2, 4],
        "age": [10, 0.5, 7],
        "kind": [b"flat", b"house", b"flat"],
    }


def test_several_columns_to_predict(tmp_path: Path) -> None:
    train, _ = split_columns(read_table(table(tmp_path)), None, ["price", "age"], ["rooms"])
    assert train.y.tolist() == [[1.5, 10], [2, 0.5], [3.5, 7]]
    with pytest.raises(UsageError, match="received text in 'kind'"):
        split_columns(read_table(table(tmp_path)), None, ["price", "kind"], ["rooms"])


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("", "expected the names of the columns, received an empty file", ""),
        ("a,b\n", "expected at least 1 row, received only names", ""),
        ("a,a\n1,2\n", "expected a name of its own for each column, received 'a' for column 2", ":1"),
        ("a,b\n1,2\n3\n", "expected 2 cells, received 1", ":3"),
        ("a,b\n1,2\n\n3,\n", "expected a value in column 'b', received an empty cell", ":4"),
    ],
)
def test_a_faulty_table_is_refused_with_its_line(tmp_path: Path, text: str, what: str, line: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_table(path)
    assert (caught.value.what, caught.value.where) == (what, f"{path}{line}")


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a column 'cost', found rooms, age, price, kind"):
        split_columns(read_table(table(tmp_path)), None, ["cost"], None)


def test_a_table_is_divided_alike_each_time_and_cached_by_its_settings(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b\n" + "".join(f"{i},{2 * i}\n" for i in range(20)))
    data = Data(dataset="csv", path=path, target=("b",), validation_fraction=0.25, cache_dir=tmp_path / "cache")
    first = prepare(data).open()
    assert (len(first.train), len(first.validation)) == (15, 5)
    assert sorted([*first.train.x[:, 0], *first.validation.x[:, 0]]) == list(range(20))
    assert (first.validation.y == 2 * first.validation.x[:, 0]).all()
    assert prepare(data).path.stat().st_mtime_ns == prepare(data).path.stat().st_mtime_ns
    other = prepare(Data(dataset="csv", path=path, target=("a",), validation_fraction=0.25, cache_dir=data.cache_dir))
    assert other.open().validation.x.tolist() == first.validation.y[:, None].tolist()
