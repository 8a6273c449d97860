"""Runs all checks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfmp.commands.doctor.line import Line, render
from tfmp.commands.doctor.machine import folder_line, machine_lines
from tfmp.commands.doctor.network import cluster_lines, proxy_line
from tfmp.commands.doctor.processes import find_workers, workers_line
from tfmp.data.cache import cache_directory
from tfmp.errors import EXIT_FAILED, EXIT_OK
from tfmp.text import say

if TYPE_CHECKING:
    from tfmp.config import RunConfig

_IMPORT_TIMEOUT_S = 120.0
_PROGRAM = (
    "import json, time; began = time.monotonic(); import tensorflow as tf, keras;"
    "seconds = time.monotonic() - began; gpus = [gpu.name for gpu in tf.config.list_physical_devices('GPU')];"
    "print(json.dumps({'version': tf.__version__, 'seconds': seconds, 'gpus': gpus}))"
)


@dataclass(frozen=True)
class DoctorOptions:
    """What the command line asks for.

    Attributes:
        quick: Run only checks that take milliseconds: no TensorFlow, no other hosts.
        quiet: Print problems only.
    """

    quick: bool = False
    quiet: bool = False


def doctor(config: RunConfig, options: DoctorOptions) -> int:
    """Print a line for each check; return 1 if one of them fails.

    Raises:
        UsageError: An address of the cluster is invalid.
    """
    lines = quick_lines(config)
    if not options.quick:
        if config.cluster.worker_addresses is not None:
            lines += cluster_lines(config.cluster.worker_addresses, socket.gethostname())
        lines.append(tensorflow_line())
    shown = [line for line in lines if line.status != "ok" or not options.quiet]
    if shown:
        say(render(shown))
    return EXIT_FAILED if any(line.status == "fail" for line in lines) else EXIT_OK


def quick_lines(config: RunConfig) -> list[Line]:
    """Run the checks that take milliseconds."""
    return [
        *machine_lines(os.environ),
        folder_line("run folder", config.run.dir or Path("runs"), "choose another --run-dir"),
        _not_in_the_way(
            folder_line("data cache", cache_directory(config.data.cache_dir), "set data.cache_dir, or TFMP_CACHE_DIR")
        ),
        folder_line("temporary", Path(tempfile.gettempdir()), "set TMPDIR to a writable folder"),
        proxy_line(os.environ),
        workers_line(find_workers()),
    ]


def _not_in_the_way(line: Line) -> Line:
    """Without a data cache each run decodes its data again, which is no reason not to train."""
    return Line("warn", line.name, line.what, line.fix) if line.status == "fail" else line


def tensorflow_line() -> Line:
    """Import TensorFlow in another process."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environ, timeout=_IMPORT_TIMEOUT_S
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Line(
            "fail",
            "TensorFlow",
            f"not imported within {_IMPORT_TIMEOUT_S:g} s",
            "check whether it is on a slow network file system",
        )
    except (ValueError, IndexError):
        last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        return Line(
            "fail", "TensorFlow", f"cannot be imported: {last[:200]}", f"{sys.executable} -c 'import tensorflow'"
        )
    gpus = f"{len(found['gpus'])} GPUs" if found["gpus"] else "no GPU"
    return Line("ok", "TensorFlow", f"{found['version']} imported in {found['seconds']:.1f} s, sees {gpus}")
