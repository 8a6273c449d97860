"""Tables (CSV) as arrays.

Legend: n rows, c columns.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfmp.data.arrays import SplitArrays
from tfmp.errors import UsageError


@dataclass(frozen=True)
class Table:
    """A table as read: the text of each cell, by column name."""

    path: Path
    columns: dict[str, list[str]]

    @property
    def rows(self) -> int:
        """Number of rows, without the line of names."""
        return len(next(iter(self.columns.values())))


def read_table(path: Path) -> Table:
    """Read a CSV file in UTF-8 whose first line names the columns.

    Raises:
        UsageError: The file cannot be read or has no rows, a name is missing or doubled, a row is too short or too
            long, or a cell is empty. Names the line and the column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            _check_names(names, path)
            cells: list[list[str]] = [[] for _ in names]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(names):
                    raise UsageError(
                        f"expected {len(names)} cells, received {len(row)}", where=f"{path}:{reader.line_num}"
                    )
                for name, column, cell in zip(names, cells, row, strict=True):
                    if not cell.strip():
                        raise UsageError(
                            f"expected a value in column {name!r}, received an empty cell",
                            where=f"{path}:{reader.line_num}",
                            hint="fill it in, or leave out the row",
                        )
                    column.append(cell.strip())
    except UnicodeDecodeError as error:
        raise UsageError(f"expected UTF-8 text: {error.reason}", where=str(path)) from None
    except csv.Error as error:
        raise UsageError(f"not a CSV file: {error}", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if not cells[0]:
        raise UsageError("expected at least 1 row, received only names", where=str(path))
    return Table(path, dict(zip(names, cells, strict=True)))


def split_columns(
    train: Table, validation: Table | None, target: Sequence[str], columns: Sequence[str] | None
) -> tuple[SplitArrays, SplitArrays | None]:
    """Return inputs and targets.

    Columns of numbers make one array [n, c], in the order of ``columns`` or of the table. If a column is text, each
    column is an array [n] of its own, by name. The target is [n], or [n, t] for t columns; text is a class, numbered
    in alphabetical order over both tables.

    Args:
        train: The training table.
        validation: The validation table, if it is one of its own.
        target: Names of the columns to predict.
        columns: Names of the columns to predict from; ``None``: all others.

    Raises:
        UsageError: A column is missing, or is text where others to predict are numbers.
    """
    tables = [train, *([validation] if validation else [])]
    chosen = list(columns) if columns is not None else [name for name in train.columns if name not in target]
    for table in tables:
        for key, names in (("data.target", target), ("data.columns", chosen)):
            for name in names:
                if name not in table.columns:
                    raise UsageError(
                        f"expected a column {name!r}, found {', '.join(table.columns)}", where=f"{key}, {table.path}"
                    )
    if not chosen:
        raise UsageError("expected a column to predict from, found none", where=f"data.columns, {train.path}")
    inputs = {name: _converted([table.columns[name] for table in tables]) for name in chosen}
    targets = {name: _converted([table.columns[name] for table in tables]) for name in target}
    return tuple(
        SplitArrays(_inputs(inputs, i), _targets(targets, i, train.path)) if i < len(tables) else None for i in range(2)
    )  # type: ignore[return-value]


def _inputs(inputs: dict[str, list[NDArray[Any]]], table: int) -> Any:
    columns = {name: parts[table] for name, parts in inputs.items()}
    if any(column.dtype.kind == "U" for column in columns.values()):
        return {name: _stored(column) for name, column in columns.items()}
    return np.stack([column.astype(np.float64) for column in columns.values()], 1)


def _targets(targets: dict[str, list[NDArray[Any]]], table: int, path: Path) -> NDArray[Any]:
    columns = list(targets.values())
    if len(columns) > 1:
        for name, parts in targets.items():
            if parts[0].dtype.kind == "U":
                raise UsageError(
                    f"expected numbers in each of several columns to predict, received text in {name!r}",
                    where=f"data.target, {path}",
                )
        return np.stack([parts[table].astype(np.float64) for parts in columns], 1)
    parts = columns[0]
    if parts[0].dtype.kind != "U":
        return parts[table]
    names = np.unique(np.concatenate(parts))
    return np.searchsorted(names, parts[table]).astype(np.int64)


def _converted(parts: list[list[str]]) -> list[NDArray[Any]]:
    """One column of all tables: int64, or float64, or text."""
    for dtype in (np.int64, np.float64):
        try:
            return [np.array(part).astype(dtype) for part in parts]
        except (ValueError, OverflowError):
            continue
    return [np.array(part) for part in parts]


def _stored(column: NDArray[Any]) -> NDArray[Any]:
    return np.char.encode(column, "utf-8") if column.dtype.kind == "U" else column


def _check_names(names: list[str], path: Path) -> None:
    if not names:
        raise UsageError("expected the names of the columns, received an empty file", where=str(path))
    for i, name in enumerate(names):
        if not name or name in names[:i]:
            raise UsageError(
                f"expected a name of its own for each column, received {name!r} for column {i + 1}", where=f"{path}:1"
            )
