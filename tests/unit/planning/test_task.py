"""What a worker is told survives the way to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.planning.plans import config, make
from tfmp.config import RunConfig
from tfmp.planning.task import ResumeFrom, ShmJoin, WorkerTask


def sent(task: WorkerTask) -> WorkerTask:
    return WorkerTask.from_json(json.loads(json.dumps(task.to_json())))


def task(run: RunConfig, **more: Any) -> WorkerTask:
    return WorkerTask.planned(run, make(), 1, Path("/runs/a"), Path("cache/header.json"), **more)


def test_the_task_is_the_plans() -> None:
    plan, made = make(), task(config())
    assert (made.rank, made.layout, made.device, made.collective) == (1, plan.layout, "cpu", plan.collective)
    assert (made.steps_per_epoch, made.steps_per_execution, made.compiled) == (235, 30, "none")
    assert (made.shm, made.resume, made.faults) == (None, None, ())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "shm": ShmJoin(Path("/tmp/x"), "ab", rank=0, size=2, hosts=1),
            "resume": ResumeFrom(Path("/runs/a/checkpoints/step-1.npz"), "ab" * 32),
            "faults": ({"kind": "kill", "rank": 1, "value": 1.0, "moment": "step", "step": 5},),
        },
    ],
)
def test_what_is_sent_arrives(more: dict[str, Any]) -> None:
    made = task(config(), **more)
    assert sent(made) == made


@pytest.mark.parametrize(
    "keys",
    [
        {"model__factory": None},
        {"cluster__workers": ["a:1", "[::1]:2"], "cluster__rendezvous": "a:2222"},
        {"run__dir": "~/runs/\udcff ä", "data__dataset": "npz", "data__path": "a/b.npz", "data__cache_dir": "rel"},
        {"training__metrics": [], "training__callbacks": ["m:a", "m.n:b"], "training__jit_compile": False},
        {"training__learning_rate": 1e-7, "training__clipnorm": 1, "training__weight_decay": 0.1 + 0.2},
        {"model__factory": None, "model__units": [], "model__dropout": 0.5, "model__batch_normalization": True},
        {"cluster__strategy": "mirrored", "cluster__devices": 2, "run__hang_timeout_s": 1.5, "run__name": "x"},
    ],
)
def test_the_configuration_arrives_as_it_was(keys: dict[str, Any]) -> None:
    run = config(**keys)
    assert sent(task(run)).config == run
    assert repr(sent(task(run)).config) == repr(run), "types and all"


def test_the_launchers_secret_stays_with_it() -> None:
    made = task(config(cluster__token="sesame"))
    assert made.config == config()
    assert "sesame" not in json.dumps(made.to_json())
