"""The ``tfmp`` command group, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from tfmp import __version__
from tfmp.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, TfmpError
from tfmp.text import eprint

#: The module and a line of help of each command: enough for ``tfmp --help`` without loading any of them.
COMMANDS = {
    "train": ("tfmp.cli.train", "Train on this machine, with worker processes or several devices."),
    "worker": ("tfmp.cli.worker", "Run one worker of a multi-host cluster."),
    "evaluate": ("tfmp.cli.evaluate", "Evaluate a trained model on its test set."),
    "verify": ("tfmp.cli.verify", "Check that your workers compute what one process does."),
    "bench": ("tfmp.cli.bench", "Measure how training scales on this machine."),
    "doctor": ("tfmp.cli.doctor", "Check this machine and its connection to the cluster."),
    "generate": ("tfmp.cli.generate", "Generate deployment files for Compose, Slurm or Kubernetes."),
    "launch": ("tfmp.cli.launch", "Run any program N times as one supervised cluster."),
}

_EPILOG = """\b
Examples:
  tfmp train                              MNIST, one worker
  tfmp train --workers 4                  MNIST, four workers on this machine
  tfmp train configs/mnist.yaml --set training.epochs=10
  tfmp train --strategy mirrored --devices 2
  tfmp train --workers 4 --dry-run        show the plan, start nothing
  tfmp worker --workers h0:2222,h1:2222 --index 0     on h0; on h1 with --index 1
  tfmp evaluate runs/20260101-120000-mnist
  tfmp launch -n 4 -- python my_script.py
  tfmp verify --workers 3                 compare with one process of plain Keras
  tfmp bench --quick                      find the best number of workers

\b
Shell completion (bash; zsh and fish alike):
  eval "$(_TFMP_COMPLETE=bash_source tfmp)"
"""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest the nearest one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean 'tfmp {near[0]}'?" if near else f"one of: {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command '{name}': {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="tfmp")
def tfmp() -> None:
    """Multi-process TensorFlow training made easy, right and fast.

    N workers compute what one process would. If a run fails, tfmp reports what went wrong, where, and how to fix it.
    """


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with the right exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `tfmp … >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    sys.exit(_exit_code(arguments))


def _exit_code(arguments: list[str]) -> int:
    try:
        value: Any = tfmp.main(arguments, prog_name="tfmp", standalone_mode=False)
        sys.stdout.flush()
    except TfmpError as error:
        if _verbose(arguments):
            traceback.print_exc()
        eprint(error.render())
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (click.Abort, KeyboardInterrupt):
        eprint("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Nobody reads our output any more (`tfmp … | head`): no traceback at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if _verbose(arguments):
            traceback.print_exc()
        eprint(_describe(error).render())
        return EXIT_FAILED
    except Exception as error:
        if _verbose(arguments):
            traceback.print_exc()
        else:
            eprint(f"error: unexpected {type(error).__name__}: {error}")
            eprint("  try:   run the same command with -v for a traceback, and please report this")
        return EXIT_FAILED
    return value if isinstance(value, int) else 0


def _describe(error: OSError) -> TfmpError:
    """The operating system's message, with a hint for common errors."""
    hints = {
        errno.ENOSPC: "free some space, or write somewhere else",
        errno.EMFILE: "raise the limit of open files: ulimit -n 1024",
        errno.ENOMEM: "free some memory, or use fewer workers",
        errno.EACCES: "check the owner and permissions",
    }
    what = error.strerror or str(error) or type(error).__name__
    return TfmpError(what, where=str(error.filename) if error.filename else None, hint=hints.get(error.errno or 0))


def _verbose(arguments: Sequence[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "-v" in own or "--verbose" in own
