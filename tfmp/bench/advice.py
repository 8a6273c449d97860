"""Recommendations: how many workers, which collective. Differences within noise are ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfmp.bench.stats import Comparison, Rounds, compare
from tfmp.text import count


@dataclass(frozen=True)
class Choice:
    """The number of workers to use at one batch size.

    Attributes:
        batch_size: Global batch.
        workers: The fewest that no other number beats beyond noise; ``None`` if there is only one round, which
            cannot show noise.
        others: For each other number of workers, how many times as fast the chosen number is.
    """

    batch_size: int
    workers: int | None
    others: Mapping[int, Comparison]

    @property
    def slower(self) -> tuple[int, ...]:
        """Larger numbers of workers that are slower beyond noise."""
        return self._larger("more")

    @property
    def no_faster(self) -> tuple[int, ...]:
        """Larger numbers of workers whose difference is within noise."""
        return self._larger("noise")

    def _larger(self, verdict: str) -> tuple[int, ...]:
        chosen = self.workers
        if chosen is None:
            return ()
        return tuple(n for n, other in sorted(self.others.items()) if n > chosen and other.verdict == verdict)


def choose(batch_size: int, rates: Mapping[int, Rounds]) -> Choice | None:
    """Choose the number of workers by samples/s, round by round; ``None`` if fewer than two were measured.

    More workers cost memory and start-up time, so they are chosen only if they are faster beyond noise.
    """
    measured = {workers: found for workers, found in sorted(rates.items()) if found}
    if len(measured) < 2:
        return None
    for chosen, own in measured.items():
        against = {n: compare(own, other) for n, other in measured.items() if n != chosen}
        others = {n: found for n, found in against.items() if found is not None}
        if len(others) < len(against) or any(found.rounds < 2 for found in others.values()):
            return Choice(batch_size, None, others)
        if all(found.verdict != "less" for found in others.values()):
            return Choice(batch_size, chosen, others)
    raise AssertionError("the fastest is beaten by none")


def explain(choice: Choice, prefix: str = "") -> str:
    """``global batch 256: 2 workers, 1.41 (1.31 to 1.52) times as fast as 1 worker; 4 is slower here``."""
    place = f"{prefix}global batch {choice.batch_size:,}"
    if choice.workers is None:
        return f"{place}: no choice: one round cannot tell a difference from noise"
    text = f"{place}: {count(choice.workers, 'worker')}"
    if smaller := [n for n in choice.others if n < choice.workers]:
        least = min(smaller)
        text += f", {ratio_text(choice.others[least])} times as fast as {count(least, 'worker')}"
    return "; ".join([text, *_about_larger(choice)])


def advise(choices: Sequence[Choice]) -> str:
    """Return the final recommendation.

    ``2 workers; 4 is slower here`` if all batch sizes agree, otherwise a part for each answer:
    ``1 worker at global batch 32; 2 workers at 256 and 2,048``.
    """
    known = [choice for choice in choices if choice.workers is not None]
    if not choices:
        return "no advice: measured fewer than two numbers of workers"
    if not known:
        return "no advice: one round cannot tell a difference from noise (use --rounds 3 or more)"
    groups: dict[int, list[Choice]] = {}
    for choice in known:
        groups.setdefault(choice.workers or 0, []).append(choice)
    if len(groups) == 1 and len(known) == len(choices):
        ((workers, _),) = groups.items()
        common = [text for text in _about_larger(known[0]) if all(text in _about_larger(other) for other in known)]
        return "; ".join([count(workers, "worker"), *common])
    parts = []
    for workers, group in groups.items():
        batches = _listed([f"{choice.batch_size:,}" for choice in group])
        parts.append(f"{count(workers, 'worker')} at global batch {batches}")
    if unknown := [f"{choice.batch_size:,}" for choice in choices if choice.workers is None]:
        parts.append(f"no advice at global batch {_listed(unknown)}")
    return "; ".join(parts)


def ratio_text(found: Comparison) -> str:
    """``1.41 (1.31 to 1.52)``: the ratio and its 95 % confidence interval, if there are several rounds."""
    if found.rounds < 2:
        return f"{found.ratio:.2f} (one round)"
    return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"


def compare_collectives(first: str, second: str, found: Comparison) -> str:
    """``shm is 3.40 (3.10 to 3.70) times as fast as ring``, or that they tie."""
    if found.verdict == "more":
        return f"{first} is {ratio_text(found)} times as fast as {second}"
    if found.verdict == "less":
        return f"{second} is {ratio_text(_inverse(found))} times as fast as {first}"
    if found.rounds < 2:
        return f"{first} and {second}: one round cannot tell which is faster (ratio {found.ratio:.2f})"
    return f"{first} and {second}: a tie, {ratio_text(found)} is within noise"


def _inverse(found: Comparison) -> Comparison:
    return Comparison(1 / found.ratio, 1 / found.high, 1 / found.low, found.rounds)


def _about_larger(choice: Choice) -> list[str]:
    texts = []
    if choice.slower:
        texts.append(
            f"{_listed(list(map(str, choice.slower)))} {'is' if len(choice.slower) == 1 else 'are'} slower here"
        )
    if choice.no_faster:
        verb = "is" if len(choice.no_faster) == 1 else "are"
        texts.append(f"{_listed(list(map(str, choice.no_faster)))} {verb} not faster beyond noise")
    return texts


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
