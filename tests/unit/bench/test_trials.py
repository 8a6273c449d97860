"""Which runs a benchmark makes, and how long the rest will take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfmp.bench.measure import Bench, Child, Interrupted, children_of, cpu_share, wait_for
from tfmp.bench.trials import Trial, TrialPlan, default_workers, shares, time_left_s
from tfmp.rundir.layout import RunFolder
from tfmp.workers.signals import SignalInbox


def plan(**changed: object) -> TrialPlan:
    settings = {"workers": (1, 2), "batch_sizes": (256,), "collectives": ("shm", "ring"), "cores": 2}
    return TrialPlan(**{**settings, "train_samples": 60000, **changed})  # type: ignore[arg-type]


def test_a_round_has_each_layout_and_its_references_once() -> None:
    assert plan().trials() == (
        Trial("run", 1, 256),
        Trial("run", 2, 256, "shm"),
        Trial("run", 2, 256, "ring"),
        Trial("alone", 1, 256, cores=1),
        Trial("apart", 2, 256),
        Trial("run", 2, 512, "shm"),
    )


def test_what_two_figures_need_is_run_once() -> None:
    trials = plan(batch_sizes=(256, 512), collectives=("shm",)).trials()
    assert len(trials) == len(set(trials)) == 9  # 2 workers at 512 are strong scaling of 512 and weak scaling of 256


def test_on_one_core_the_plain_run_of_one_worker_is_the_reference() -> None:
    one = plan(cores=1, workers=(2,))
    assert one.alone(2, 256) == Trial("run", 1, 256)
    assert Trial("run", 1, 256) in one.trials(), "it is run although it was not asked for"


def test_references_have_the_cores_of_one_of_the_workers() -> None:
    sixteen = plan(cores=16, workers=(1, 2, 4, 16, 32))
    assert [sixteen.alone(n, 256).cores for n in (1, 2, 4, 16, 32)] == [None, 8, 4, 1, 1]


def test_weak_scaling_ends_where_the_samples_do() -> None:
    small = plan(train_samples=1000)
    assert small.weak_run(2, 500) == Trial("run", 2, 1000, "shm")
    assert small.weak_run(2, 501) is None
    assert small.weak_run(1, 10) is None
    assert plan(weak=False).weak_run(2, 10) is None


def test_without_references_only_layouts_are_run() -> None:
    assert [one.kind for one in plan(references=False).trials()] == ["run", "run", "run"]


def test_names_and_titles() -> None:
    trials = plan().trials()
    assert [one.name for one in trials] == [
        "workers-1-batch-256",
        "workers-2-batch-256-shm",
        "workers-2-batch-256-ring",
        "alone-on-1-batch-256",
        "apart-2-batch-256",
        "workers-2-batch-512-shm",
    ]
    assert trials[2].title == "2 workers, ring, batch 256"
    assert trials[3].title == "1 worker on 1 core, batch 256 (reference)"
    assert Trial("run", 1, 2048).title == "1 worker, batch 2,048"


@pytest.mark.parametrize(("cores", "workers"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))])
def test_default_workers(cores: int, workers: tuple[int, ...]) -> None:
    assert default_workers(cores) == workers


def test_shares_add_up() -> None:
    assert shares(257, 4) == (65, 64, 64, 64)
    assert shares(60000, 2) == (30000, 30000)


def test_lone_workers_get_cpus_of_their_own_and_take_turns_beyond() -> None:
    assert [cpu_share((4, 5, 6, 7), 2, place) for place in range(2)] == [(4, 5), (6, 7)]
    assert [cpu_share((4, 5, 6, 7), 3, place) for place in range(3)] == [(4,), (5,), (6,)]
    assert [cpu_share((4, 5), 4, place) for place in range(4)] == [(4,), (5,), (4,), (5,)]


def test_time_left_counts_what_is_known_and_guesses_the_rest() -> None:
    one, two, three = plan().trials()[:3]
    assert time_left_s([], [one]) is None
    assert time_left_s([(one, 10.0)], [two, three]) == 20.0
    assert time_left_s([(one, 10.0), (two, 40.0), (one, 20.0)], [one, two, two]) == 95.0


BENCH = Bench(Path("c.yaml"), Path("trials"), (4, 5), train_samples=1000, epochs=3, grace_period_s=1.0)


def given(arguments: list[str], option: str) -> list[str]:
    """Every value of an option."""
    return [value for name, value in pairwise(arguments) if name == option]


def test_workers_apart_share_out_batch_samples_and_cpus() -> None:
    children = children_of(BENCH, Trial("apart", 3, 257), Path("x"))
    assert [given(child.arguments, "--batch-size") for child in children] == [["86"], ["86"], ["85"]]
    limits = [value for child in children for value in given(child.arguments, "--set") if "limit_train" in value]
    assert limits == ["data.limit_train=334", "data.limit_train=333", "data.limit_train=333"]
    assert [child.cpus for child in children] == [(4,), (5,), (4,)]
    assert all(given(child.arguments, "--workers") == ["1"] for child in children)
    assert len({child.folder.path for child in children}) == 3


def test_a_run_is_the_users_own_and_only_a_reference_is_held_to_cores() -> None:
    (run,) = children_of(BENCH, Trial("run", 2, 256, "ring"), Path("x"))
    assert run.arguments[:2] == ["train", "c.yaml"]
    assert given(run.arguments, "--workers") == ["2"]
    assert given(run.arguments, "--batch-size") == ["256"]
    assert given(run.arguments, "--collective") == ["ring"]
    assert given(run.arguments, "--epochs") == ["3"]
    assert given(run.arguments, "--max-restarts") == ["0"], "a restarted run has no times to compare"
    assert run.cpus is None
    (alone,) = children_of(BENCH, Trial("alone", 1, 256, cores=1), Path("x"))
    assert alone.cpus == (4,)


def test_the_child_keeps_to_its_cpus_and_does_not_outlive_its_parent() -> None:
    one = sorted(os.sched_getaffinity(0))[-1]
    code = "import os; print(sorted(os.sched_getaffinity(0)))"

    def child(parent: int, cpus: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tfmp.bench.child", str(parent), cpus, "launch", "-n", "1", "--"]
        return subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert child(os.getpid(), str(one)).stdout == f"[worker 0] [{one}]\n"
    assert child(os.getpid(), "-").stdout == f"[worker 0] {sorted(os.sched_getaffinity(0))}\n"
    orphan = child(1, "-")
    assert (orphan.returncode, orphan.stdout) == (143, "")


def test_a_signal_that_hits_a_starting_child_too_is_an_interruption_not_a_failure(tmp_path: Path) -> None:
    child = Child(RunFolder(tmp_path / "run"), [])
    with SignalInbox((signal.SIGINT,)) as inbox:
        child.process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 2)"])
        child.process.wait()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted) as found:
            wait_for([child], inbox, lambda: None, 1.0)
    assert found.value.signum == signal.SIGINT


def test_the_child_that_failed_is_told_from_those_that_were_then_stopped(tmp_path: Path) -> None:
    children = [Child(RunFolder(tmp_path / str(place)), []) for place in range(3)]
    with SignalInbox((signal.SIGINT,)) as inbox:
        for place, child in enumerate(children):
            code = "raise SystemExit(7)" if place == 1 else "import time; time.sleep(60)"
            child.process = subprocess.Popen([sys.executable, "-c", code])
        assert wait_for(children, inbox, lambda: None, 1.0) is children[1]
    codes = [child.process.returncode for child in children if child.process is not None]
    assert codes == [-signal.SIGTERM, 7, -signal.SIGTERM]
