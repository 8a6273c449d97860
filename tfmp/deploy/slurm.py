"""A batch script for Slurm: one task a worker."""

from __future__ import annotations

import math

from tfmp.deploy.deployment import Deployment, heading, shell_words

FILE_NAME = "job.sbatch"

#: After success, and wrong usage, another attempt would end the same way. 143 says nothing: srun ends the tasks of a
#: failed group by SIGTERM, and returns the highest of their codes. A stop is heard by the script itself.
_FINAL = "0|2"


def slurm(deployment: Deployment, file: str = FILE_NAME) -> str:
    """Return the script's text.

    Args:
        deployment: What to deploy.
        file: The path the heading names.
    """
    one = deployment
    folder = one.run_dir or f"runs/{one.folder_name}-$SLURM_JOB_ID"
    config = [one.config] if one.config else []
    words = ["tfmp", "worker", *config, *one.set_words, "--run-dir", folder, "--resume"]
    attempts = " ".join(str(attempt) for attempt in range(one.max_restarts + 1))
    lines = [
        "#!/bin/bash",
        *heading(
            [
                "Start it where tfmp is on the path, in a folder that all nodes share:",
                "",
                f"  sbatch {file}",
                "",
                "A job that is requeued, or a worker that fails, goes on from the last checkpoint. scancel saves one.",
                *one.code_lines,
                f"Made by: {one.made_by}",
            ]
        ),
        "",
        f"#SBATCH --job-name={one.label}",
        f"#SBATCH --ntasks={one.workers}",
        f"#SBATCH --cpus-per-task={one.cpus}",
        f"#SBATCH --mem-per-cpu={math.ceil(one.memory_mib / one.cpus)}M",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "",
        "export PYTHONUNBUFFERED=1",
        "trap 'exit 143' TERM",
        f"for attempt in {attempts}; do",
        "    code=0",
        f"    srun --kill-on-bad-exit=1 --cpus-per-task={one.cpus} \\",
        f"        {shell_words(words)} || code=$?",
        "    case $code in",
        f"        {_FINAL}) exit $code ;;",
        "    esac",
        "done",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"
