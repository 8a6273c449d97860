"""Settings as the command line gives them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tfmp.cli.options import KEY_FLAGS, Settings, output_options, parse_ranks, settings_options
from tfmp.cli.worker import _arguments
from tfmp.errors import UsageError

FLAGS = {flag.name: flag for flag in KEY_FLAGS}


def parsed(*arguments: str) -> tuple[Settings, int]:
    """What a command with these options gets."""
    found: list[tuple[Settings, int]] = []

    @click.command()
    @settings_options(*KEY_FLAGS)
    @output_options
    def command(settings: Settings, verbosity: int, no_live: bool) -> None:
        found.append((settings, verbosity))

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_a_command_gets_what_was_given_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("training: {epochs: 2, seed: 3}\n")
    settings, verbosity = parsed(str(file), "--set", "training.seed=4", "--workers", "2", "--epochs", "7", "-q")
    assert settings == Settings(file, ("training.seed=4",), {FLAGS["--workers"]: "2", FLAGS["--epochs"]: "7"})
    assert verbosity == -1
    resolved = settings.with_flags({FLAGS["--epochs"]: 9, FLAGS["--batch-size"]: 64}).resolve()
    assert (resolved.config.training.epochs, resolved.origin("training.epochs")) == (9, "--epochs")
    assert (resolved.config.training.batch_size, resolved.config.training.seed) == (64, 4)
    assert resolved.config.cluster.workers == 2


def test_a_run_to_resume_brings_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("training: {seed: 5}\n")
    settings, _ = parsed("--run-dir", str(tmp_path))
    assert settings.resolve().config.training.seed == 0
    assert settings.resolve(resume=True).config.training.seed == 5
    with pytest.raises(UsageError, match="expected a run folder to resume"):
        parsed()[0].resolve(resume=True)


def test_the_command_for_other_hosts_has_no_secret() -> None:
    settings, _ = parsed("a.yaml", "--workers", "h0:1,h1:1", "--set", "cluster.token=sesame", "--set", "run.name=x")
    assert _arguments(settings, "slurm", True) == [
        "a.yaml", "--workers", "h0:1,h1:1", "--set", "cluster.token=...", "--set", "run.name=x",
        "--cluster", "slurm", "--resume",
    ]  # fmt: skip


def test_ranks() -> None:
    assert parse_ranks(None, 4) is None
    assert parse_ranks("0, 3", 4) == {0, 3}
    for text in ("4", "0,x", "-1", ""):
        with pytest.raises(UsageError, match="expected ranks from 0 to 3"):
            parse_ranks(text, 4)
