"""What commands print about a planned run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tfmp.report.summary import print_rows
from tfmp.text import count

if TYPE_CHECKING:
    from tfmp.config import Resolved
    from tfmp.planning.plan import Plan


def headline(plan: Plan) -> str:
    """Summarize a plan in one line."""
    batch = plan.batch
    each = f"{batch.per_replica_batch} per replica" + (f": {batch.uneven}" if batch.uneven else "")
    return (
        f"{count(len(plan.workers), 'worker')}, {plan.strategy}, collective {plan.collective.name}; "
        f"replicas: {plan.replicas}; global batch {batch.global_batch:,} ({each}); "
        f"{batch.steps_per_epoch:,} steps per epoch, {count(plan.epochs, 'epoch')}"
    )


def print_plan(resolved: Resolved, plan: Plan) -> None:
    """Print the settings with their origins, and the plan with each worker's TF_CONFIG."""
    from tfmp.planning.plan import WORKER_COLUMNS

    print("settings:")
    print("\n".join(f"  {line}" for line in resolved.to_yaml(origins=True).splitlines()))
    print_rows(plan.describe(), "plan:")
    print_rows(plan.worker_rows(), "workers:", columns=WORKER_COLUMNS)
    for worker in plan.workers:
        if worker.tf_config:
            print(f"  worker {worker.rank}: TF_CONFIG={json.dumps(json.loads(worker.tf_config))}")
    for warning in plan.warnings:
        print(f"warning: {warning}")
