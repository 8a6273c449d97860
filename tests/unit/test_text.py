"""How quantities are written."""

from __future__ import annotations

from tfmp.text import count, metrics_text, rate, seconds


def test_numbers_for_people() -> None:
    assert [seconds(value) for value in (0.84, 9.96, 61, 3725)] == ["0.8 s", "10.0 s", "1 min 1 s", "1 h 2 min"]
    assert [count(1, "worker"), count(60000, "sample")] == ["1 worker", "60,000 samples"]
    assert [rate(None), rate(12345.6)] == ["", "12,346 samples/s"]
    assert metrics_text({"auc": 0.5, "loss": None, "epoch": 3}) == "loss nan  auc 0.5000"
