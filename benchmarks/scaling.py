"""How the cost of a step grows with workers and with the model, and the model of that cost.

    python benchmarks/scaling.py [--workers 1,2,4,8] [--parameters 1e5,1e6,1e7] [--batch-size 256] [--rounds 3]

The work: MNIST, an MLP of one hidden layer, Adam, the same global batch for every number of workers. Every pair of
model and number of workers runs once a round, and beside it the same workers apart, without an exchange (see
``docs/performance.md``). For each number of workers two costs are fitted over the models, each as
latency + bytes / bandwidth with the bytes of one gradient: the whole step, and the exchange. Printed is a Markdown
table with what was measured and what the model says; every raw figure goes into ``runs/scaling.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tfmp.bench.analysis import Measurement
from tfmp.bench.machine import describe_machine, versions
from tfmp.bench.measure import Bench, Interrupted, run_trial
from tfmp.bench.stats import CostModel, fit_cost
from tfmp.bench.trials import Trial, TrialPlan
from tfmp.config import resolve
from tfmp.planning.host import affinity_cpus, available_cores
from tfmp.rundir.layout import write_json
from tfmp.workers.lifecycle import STOP_SIGNALS
from tfmp.workers.signals import SignalInbox

TRAIN_SAMPLES = 60000
EPOCHS = 4
FLOAT_BYTES = 4
#: Parameters of 784-h-10 are 795 h + 10.
UNIT_PARAMETERS, OTHER_PARAMETERS = 795, 10
#: Work of an epoch, in parameters times samples: about a second on a core.
EPOCH_WORK = 2e10

#: (parameters, trial) -> measurements of all rounds.
Found = dict[tuple[int, Trial], list[Measurement]]


def hidden_units(parameters: float) -> int:
    """Units of the hidden layer that bring an MLP 784-h-10 closest to so many parameters."""
    return max(1, round((parameters - OTHER_PARAMETERS) / UNIT_PARAMETERS))


def steps_per_epoch(parameters: int, batch_size: int) -> int:
    """Enough steps to be timed, few enough that a large model ends: from 8 to a pass over the samples."""
    return max(8, min(TRAIN_SAMPLES // batch_size, round(EPOCH_WORK / parameters / batch_size)))


def measure(
    options: argparse.Namespace, plan: TrialPlan, models: Sequence[int], scratch: Path, inbox: SignalInbox
) -> Found:
    """Run all rounds; an interruption keeps what was measured."""
    found: Found = {}
    trials = [trial for trial in plan.trials() if trial.kind != "alone"]
    total, done = len(trials) * len(models) * options.rounds, 0
    try:
        for number in range(1, options.rounds + 1):
            for parameters in models:
                common = prepare_model(options, parameters, scratch)
                for trial in trials:
                    done += 1
                    print(f"[{done}/{total}] {parameters:,} parameters, {trial.title}", file=sys.stderr, flush=True)
                    one = run_trial(common, trial, number, inbox)
                    found.setdefault((parameters, trial), []).append(one)
    except Interrupted as interruption:
        print(
            f"interrupted ({interruption}) in run {done} of {total}: the figures are of those before", file=sys.stderr
        )
    return found


def prepare_model(options: argparse.Namespace, parameters: int, scratch: Path) -> Bench:
    """Write the configuration of one model."""
    folder = scratch / str(parameters)
    folder.mkdir(exist_ok=True)
    sets = [
        f"model.units=[{hidden_units(parameters)}]",
        f"training.steps_per_epoch={steps_per_epoch(parameters, options.batch_size)}",
        "training.validation_every=0",
        "run.checkpoints=false",
        "run.tensorboard=false",
    ]
    resolved = resolve(None, [*sets, *options.sets])
    (folder / "config.yaml").write_text(resolved.to_yaml())
    cpus = affinity_cpus()[: available_cores()]
    return Bench(folder / "config.yaml", folder / "trials", cpus, TRAIN_SAMPLES, EPOCHS, grace_period_s=10.0)


def step_s(measurements: Sequence[Measurement]) -> list[float]:
    """Seconds of a step in each round."""
    return [one.trial.batch_size / one.samples_per_second for one in measurements]


def fit_over_models(costs_s: Mapping[int, float]) -> CostModel | None:
    """Fit costs by parameters of the model; those that noise brought to 0 or below are left out."""
    usable = {parameters: cost for parameters, cost in costs_s.items() if cost > 0}
    if len(usable) < 2:
        return None
    return fit_cost([FLOAT_BYTES * parameters for parameters in usable], list(usable.values()))


def report(plan: TrialPlan, models: Sequence[int], found: Found) -> list[dict[str, object]]:
    """Print the tables; return their content."""
    batch_size = plan.batch_sizes[0]
    rows: list[dict[str, object]] = []
    models_of_cost = []
    print("| workers | parameters | step, ms (range) | model, ms | without exchange, ms | exchange, ms | model, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for workers in plan.workers:
        steps: dict[int, list[float]] = {}
        apart: dict[int, list[float]] = {}
        for parameters in models:
            if runs := found.get((parameters, plan.run(workers, batch_size))):
                steps[parameters] = step_s(runs)
                apart[parameters] = step_s(found.get((parameters, plan.apart(workers, batch_size)), []))
        exchange = {
            parameters: statistics.median([one - other for one, other in zip(steps[parameters], lone, strict=False)])
            for parameters, lone in apart.items()
            if lone
        }
        whole_cost = fit_over_models({parameters: statistics.median(ours) for parameters, ours in steps.items()})
        exchange_cost = fit_over_models(exchange)
        for parameters, ours in steps.items():
            lone = statistics.median(apart[parameters]) if apart[parameters] else None
            cells = [
                str(workers),
                f"{parameters:,}",
                f"{1e3 * statistics.median(ours):.3f} ({1e3 * min(ours):.3f} to {1e3 * max(ours):.3f})",
                said(whole_cost, parameters),
                "-" if lone is None else f"{1e3 * lone:.3f}",
                "-" if parameters not in exchange else f"{1e3 * exchange[parameters]:.3f}",
                said(exchange_cost, parameters) if parameters in exchange else "-",
            ]
            print(f"| {' | '.join(cells)} |")
            row = {"workers": workers, "parameters": parameters, "step_s": ours, "apart_s": apart[parameters]}
            rows.append({**row, "exchange_s": exchange.get(parameters)})
        for name, cost in (("step", whole_cost), ("exchange", exchange_cost)):
            if cost is not None:
                models_of_cost.append((workers, name, cost))
                rows.append({"workers": workers, "fit": name, **asdict(cost)})
    print("\n| workers | cost | latency, ms | bandwidth, GB/s of gradient | worst error |")
    print("| --- | --- | --- | --- | --- |")
    for workers, name, cost in models_of_cost:
        speed = f"{cost.units_per_second / 1e9:.3f}"
        print(f"| {workers} | {name} | {1e3 * cost.latency_s:.3f} | {speed} | {cost.worst_error:.0%} |")
    return rows


def said(cost: CostModel | None, parameters: int) -> str:
    """What the model of the cost says, in milliseconds."""
    return "-" if cost is None else f"{1e3 * cost.seconds(FLOAT_BYTES * parameters):.3f}"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(float(part)) for part in text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=(1, 2, 4, 8))
    parser.add_argument("--parameters", type=numbers, default=(100_000, 1_000_000, 10_000_000))
    parser.add_argument("--batch-size", type=int, default=256, help="global batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--collective", default="shm")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=Path("runs/scaling.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)  # found out now, not after ten minutes
    cores = available_cores()
    models = [UNIT_PARAMETERS * hidden_units(one) + OTHER_PARAMETERS for one in options.parameters]
    plan = TrialPlan(options.workers, (options.batch_size,), (options.collective,), cores, TRAIN_SAMPLES, weak=False)
    machine = describe_machine(cores)
    print(f"{machine['cpu']}, {cores} cores, load {machine['load']}; {json.dumps(versions())}")
    print(
        f"global batch {options.batch_size}, {options.collective}, {options.rounds} rounds {' '.join(options.sets)}\n"
    )
    with tempfile.TemporaryDirectory(prefix="tfmp-scaling-") as scratch, SignalInbox(STOP_SIGNALS) as inbox:
        found = measure(options, plan, models, Path(scratch), inbox)
    rows = report(plan, models, found)
    runs = [{"parameters": parameters, **asdict(one)} for (parameters, _), ones in found.items() for one in ones]
    facts = {
        "machine": machine,
        "versions": versions(),
        "options": {**vars(options), "output": os.fspath(options.output)},
    }
    write_json(options.output, {**facts, "table": rows, "runs": runs})
    print(f"\nwritten: {options.output}")


if __name__ == "__main__":
    main()
