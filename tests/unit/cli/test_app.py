"""The command line without TensorFlow: help, versions, usage errors, exit codes, speed of answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Done
from tfmp import __version__
from tfmp.cli.app import COMMANDS, _exit_code
from tfmp.cli.options import KEY_FLAGS
from tfmp.config import RunConfig, schema_keys


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The program as a function, in this process: as ``tfmp``, without the time to start."""

    def call(*arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        if cwd is not None:
            monkeypatch.chdir(cwd)
        code = _exit_code([str(one) for one in arguments])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err, 0.0)

    return call


def test_version_and_help(inside: Callable[..., Done]) -> None:
    assert inside("--version").out == f"tfmp, version {__version__}\n"
    done = inside("--help")
    assert all(f"  {name}" in done.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples(inside: Callable[..., Done], name: str) -> None:
    done = inside(name, "--help")
    assert done.code == 0
    assert "Examples:" in done.out


def test_every_flag_for_a_key_names_one_that_exists() -> None:
    assert {flag.key for flag in KEY_FLAGS} <= set(schema_keys())


def test_help_names_the_defaults_of_the_schema() -> None:
    for flag in KEY_FLAGS:
        default: Any = RunConfig()
        for part in flag.key.split("."):
            default = getattr(default, part)
        if default is not None:
            text = f"{default:g}" if isinstance(default, float) else str(default)
            assert flag.help.endswith(f"  [default: {text}]"), flag.name


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("trian",), "did you mean 'tfmp train'?"),
        (("train", "--worker", "2"), "--workers"),
        (("train", "--set", "training.learing_rate=0.1"), "training.learning_rate"),
        (("train", "--workers", "four"), "four"),
        (("train", "--workers", "0"), "0"),
        (("train", "--epochs", "1.5"), "1.5"),
        (("train", "--seed", "-1"), "4294967295"),
        (("train", "--seed", "abc"), "abc"),
        (("train", "--learning-rate", "nan"), "nan"),
        (("train", "--workers", "4", "--batch-size", "2"), "received 2"),
        (("train", "--workers", "4", "--set", "data.limit_train=3"), "received 3"),
        (("train", "--workers", "4", "--set", "data.limit_train=0"), "received 0"),
        (("train", "--strategy", "mirrored", "--devices", "4", "--batch-size", "2"), "4 replicas"),
        (("train", "--workers", "a:1,b:2"), "cluster.workers"),
        (("train", "--collective", "nccl", "--workers", "2", "--set", "cluster.device=cpu"), "nccl"),
        (("train", "--set", "data.dataset=npz", "--set", "data.path=/no/such.npz"), "/no/such.npz"),
        (("train", "-v", "-q"), "at most one of -v and -q"),
        (("train", "--inject-fault", "burn"), "--inject-fault"),
        (("train", "--drill", "burn"), "--inject-fault"),
        (("worker", "--hosts", "a:1,b:1"), "--hosts"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_usage_error_names_what_it_received_and_leaves_nothing(
    inside: Callable[..., Done], tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = inside(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert expected in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.iterdir()), "no run folder before the settings are right"


def test_nccl_without_gpus_is_refused(inside: Callable[..., Done]) -> None:
    done = inside("train", "--workers", "2", "--collective", "nccl", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 2
    assert "nccl" in done.err
    assert "GPU" in done.err


def test_labels_of_one_class_are_refused(inside: Callable[..., Done], tmp_path: Path) -> None:
    images, labels = np.zeros((20, 4, 4), np.uint8), np.zeros(20, np.uint8)
    path = tmp_path / "one.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    given = ("--set", "data.dataset=npz", "--set", f"data.path={path}", "--set", f"data.cache_dir={tmp_path}")
    done = inside("train", *given, "--dry-run")
    assert done.code == 2
    assert "expected labels of at least two classes, found one" in done.err
    assert "data set npz" in done.err
    own_model = ("--set", "model.factory=os:getcwd")
    assert inside("train", *given, *own_model, "--dry-run").code == 0


def test_gpus_that_cannot_be_shared_are_refused(inside: Callable[..., Done]) -> None:
    done = inside("launch", "-n", 4, "--", "true", env={"CUDA_VISIBLE_DEVICES": "4,7"})
    assert done.code == 2
    assert "2 GPUs for 4 workers" in done.err
    assert '-n 2, or without GPUs: CUDA_VISIBLE_DEVICES="" tfmp launch' in done.err


def test_dry_run_shows_settings_with_origins_and_every_workers_part(inside: Callable[..., Done]) -> None:
    done = inside("train", "--workers", 3, "--batch-size", 64, "--set", "training.learning_rate=1e-3", "--dry-run")
    assert done.code == 0
    assert re.search(r"learning_rate: 0\.001  # --set", done.out)
    assert re.search(r"batch_size: 64  # --batch-size", done.out)
    assert re.search(r"epochs: 5  # default", done.out)
    assert "22, 21, 21" in done.out
    for rank in range(3):
        assert f"worker {rank}: TF_CONFIG=" in done.out
    assert "938 (the last with 32 samples)" in done.out


def test_too_many_workers_for_the_cores_give_one_warning(inside: Callable[..., Done]) -> None:
    done = inside("train", "--workers", 64, "--dry-run")
    assert len(re.findall(r"^warning: 64 workers share \d+ cores", done.out, re.M)) == 1


def test_a_run_folder_is_never_overwritten(inside: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("an earlier run")
    done = inside("train", "--run-dir", tmp_path)
    assert done.code == 2
    assert str(tmp_path) in done.err
    assert (tmp_path / "config.yaml").read_text() == "an earlier run"
    (tmp_path / "file").write_text("")
    done = inside("train", "--run-dir", tmp_path / "file")
    assert done.code == 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["config.yaml", "file"]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_taken_base_port_is_named(inside: Callable[..., Done], worker: int) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: Any = taken.getsockname()[1]
        done = inside("train", "--workers", 2, "--base-port", port - worker)
    assert done.code == 2
    assert str(port) in done.err
    assert "in use" in done.err


def test_a_base_port_without_room_for_the_workers_is_refused(inside: Callable[..., Done]) -> None:
    done = inside("train", "--workers", 4, "--base-port", 65533)
    assert done.code == 2
    assert "expected 4 consecutive ports between 1 and 65535, received 65533 to 65536" in done.err
    assert "between 1 and 65532" in done.err
