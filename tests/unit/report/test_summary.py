"""Tables."""

from __future__ import annotations

import pytest

from tfmp.report.summary import print_rows, summary_rows


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([("a", "1"), ("long", "2")], "title")
    print_rows([("0", "any"), ("1", "-")], columns=("rank", "x"))
    assert capsys.readouterr().out == "title\n  a     1\n  long  2\n  rank  x\n  0     any\n  1     -\n"


def test_summary_rows_leave_out_what_is_not_known() -> None:
    summary = {"status": "failed", "workers": 1, "replicas": 1, "strategy": "mirrored", "collective": "none",
               "epochs": 0, "samples_per_second": None, "seconds_to_first_step": None, "seconds": 1.0,
               "weights_sha256": None}  # fmt: skip
    assert [label for label, _ in summary_rows(summary, "runs/a")] == [
        "status", "workers", "epochs", "total time", "run folder",
    ]  # fmt: skip


def test_tables_on_a_terminal_are_drawn_and_in_a_pipe_without_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("0", "127.0.0.1:2222"), ("1", "127.0.0.1:2223")]
    print_rows(rows, "workers:", columns=("rank", "address"))
    piped = capsys.readouterr().out
    assert piped == "workers:\n  rank  address\n  0     127.0.0.1:2222\n  1     127.0.0.1:2223\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_rows(rows, "workers:", columns=("rank", "address"))
    drawn = capsys.readouterr().out
    assert "127.0.0.1:2223" in drawn
    assert "┏" in drawn
    print_rows(rows, "workers:", columns=("rank", "address"), plain=True)
    assert capsys.readouterr().out == piped
