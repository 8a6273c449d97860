"""What the figures say to do."""

from __future__ import annotations

from tfmp.bench.advice import Choice, advise, choose, compare_collectives, explain
from tfmp.bench.stats import Comparison, compare


def rounds(*values: float) -> dict[int, float]:
    return dict(enumerate(values, start=1))


def chosen(batch_size: int, **rates: tuple[float, ...]) -> Choice:
    found = choose(batch_size, {int(name[1:]): rounds(*values) for name, values in rates.items()})
    assert found is not None
    return found


def test_the_fastest_is_chosen_where_it_stands_out() -> None:
    choice = chosen(256, n1=(100, 101, 102), n2=(150, 152, 151), n4=(90, 91, 92))
    assert (choice.workers, choice.slower, choice.no_faster) == (2, (4,), ())
    assert (
        explain(choice)
        == "global batch 256: 2 workers, 1.50 (1.46 to 1.53) times as fast as 1 worker; 4 is slower here"
    )
    assert advise([choice]) == "2 workers; 4 is slower here"


def test_inside_the_noise_the_fewest_are_chosen_and_no_winner_is_called() -> None:
    choice = chosen(256, n1=(100, 120, 90), n2=(130, 95, 125))
    assert (choice.workers, choice.slower, choice.no_faster) == (1, (), (2,))
    assert advise([choice]) == "1 worker; 2 is not faster beyond noise"


def test_more_workers_than_needed_are_not_chosen() -> None:
    choice = chosen(256, n1=(100, 100, 100), n2=(180, 181, 182), n4=(181, 180, 182))
    assert (choice.workers, choice.no_faster) == (2, (4,))
    assert explain(choice, "soonest at ") == (
        "soonest at global batch 256: 2 workers, 1.81 (1.79 to 1.83) times as fast as 1 worker; "
        "4 is not faster beyond noise"
    )


def test_one_that_is_as_good_as_a_noisy_fastest_but_beaten_by_a_steady_one_is_not_chosen() -> None:
    # 4 is the fastest, too unsteady to beat anyone; 2 beats 1.
    choice = chosen(256, n1=(100, 100, 100), n2=(150, 150, 151), n4=(400, 90, 300))
    assert choice.workers == 2


def test_where_more_are_slower_one_is_the_answer() -> None:
    choice = chosen(32, n1=(100, 101, 102), n2=(80, 81, 80), n4=(40, 41, 42))
    assert advise([choice]) == "1 worker; 2 and 4 are slower here"


def test_batch_sizes_that_disagree_are_named() -> None:
    small = chosen(32, n1=(100, 101, 102), n2=(80, 81, 80))
    middle = chosen(256, n1=(100, 101, 102), n2=(150, 151, 150))
    large = chosen(2048, n1=(100, 101, 102), n2=(190, 191, 190))
    assert advise([small, middle, large]) == "1 worker at global batch 32; 2 workers at global batch 256 and 2,048"


def test_only_what_holds_for_all_batch_sizes_is_said_of_all() -> None:
    middle = chosen(256, n1=(100, 101, 102), n2=(150, 151, 150), n4=(50, 51, 52))
    large = chosen(2048, n1=(100, 101, 102), n2=(190, 191, 190), n4=(190, 191, 192))
    assert advise([middle, large]) == "2 workers"


def test_a_single_round_gives_no_advice() -> None:
    choice = chosen(256, n1=(100,), n2=(500,))
    assert choice.workers is None
    assert "no choice: one round" in explain(choice)
    assert advise([choice]) == "no advice: one round cannot tell a difference from noise (use --rounds 3 or more)"


def test_nothing_to_compare_gives_no_advice() -> None:
    assert choose(256, {1: rounds(100, 100), 2: {}}) is None
    assert advise([]) == "no advice: measured fewer than two numbers of workers"


def test_an_interrupted_benchmark_advises_on_what_is_known() -> None:
    known = chosen(32, n1=(100, 101, 102), n2=(150, 151, 150))
    unknown = chosen(256, n1=(100,), n2=(150,))
    assert advise([known, unknown]) == "2 workers at global batch 32; no advice at global batch 256"


def test_collectives() -> None:
    def said(one: tuple[float, ...], other: tuple[float, ...]) -> str:
        found = compare(rounds(*one), rounds(*other))
        assert isinstance(found, Comparison)
        return compare_collectives("shm", "ring", found)

    assert said((300, 300, 300), (100, 100, 100)) == "shm is 3.00 (3.00 to 3.00) times as fast as ring"
    assert said((100, 100, 100), (300, 300, 300)) == "ring is 3.00 (3.00 to 3.00) times as fast as shm"
    assert said((100, 120, 100), (110, 100, 105)).startswith("shm and ring: a tie, 1.01 (")
    assert said((300,), (100,)) == "shm and ring: one round cannot tell which is faster (ratio 3.00)"
