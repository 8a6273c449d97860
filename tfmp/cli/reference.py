"""The reference of commands in ``docs/commands.md``: ``python -m tfmp.cli.reference > docs/commands.md``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tfmp.cli.app import COMMANDS, tfmp


def markdown() -> str:
    """Every command with its help, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "What `--help` says of each. Made by `python -m tfmp.cli.reference > docs/commands.md`; a test keeps it true."
    yield ""
    root = click.Context(tfmp, info_name="tfmp", help_option_names=["-h", "--help"])
    yield from _section("tfmp", tfmp, root)
    for name in COMMANDS:
        command = tfmp.get_command(root, name)
        if command is not None:
            yield from _section(f"tfmp {name}", command, click.Context(command, info_name=name, parent=root))


def _section(title: str, command: click.Command, context: click.Context) -> Iterator[str]:
    context.terminal_width = context.max_content_width = 110
    yield f"## {title}"
    yield ""
    yield "```text"
    yield command.get_help(context)
    yield "```"
    yield ""


if __name__ == "__main__":
    print(markdown(), end="")
