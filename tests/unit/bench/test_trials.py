"""Which runs a benchmark makes, and how long the rest will take."""

from __future__ import annotations

import pytest

from tfmp.bench.trials import Trial, TrialPlan, default_workers, shares, time_left_s


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


def test_time_left_counts_what_is_known_and_guesses_the_rest() -> None:
    one, two, three = plan().trials()[:3]
    assert time_left_s([], [one]) is None
    assert time_left_s([(one, 10.0)], [two, three]) == 20.0
    assert time_left_s([(one, 10.0), (two, 40.0), (one, 20.0)], [one, two, two]) == 95.0
