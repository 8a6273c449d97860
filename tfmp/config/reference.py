"""The reference of all keys, written from the schema: ``python -m tfmp.config.reference > docs/configuration.md``."""

from __future__ import annotations

import inspect
import sys

from tfmp.config.dump import value_text
from tfmp.config.keys import KeyInfo, schema_keys, sections
from tfmp.config.schema import RunConfig

_INTRODUCTION = """\
# The configuration of a run

<!-- Written by `python -m tfmp.config.reference > docs/configuration.md`: edit tfmp/config/schema.py, not this. -->

A run is described by a YAML file of five sections, each key optional. `--set section.key=VALUE` overrides the file,
and a flag such as `--epochs` overrides both; all three read a value by the same rules. `tfmp train --dry-run` prints
the resolved settings with the place each came from. Files that work as they are lie in [`configs/`](../configs).

How values are read:

- Numbers: any decimal notation, `1e-3` included. A key that counts takes `64.0` and `1e2`, not `64.5`. Refused, as
  YAML readers disagree about them: `012`, `0o12`, `12:30`, `1_000`; also `nan`, `inf`, and numbers in quotes.
- yes or no: `yes`, `no`, `on`, `off`, `true`, `false`, without quotes. A text key refuses these words unless quoted.
- `null` means "not set".
- Unknown and repeated keys are errors, as are YAML tags. Relative paths start from the current directory.
"""

_HEADER = "| key | expects | default | meaning |\n| --- | --- | --- | --- |\n"


def markdown() -> str:
    """Return the reference as Markdown: one table a section."""
    parts = [_INTRODUCTION]
    for section in sections():
        summary = inspect.getdoc(RunConfig.model_fields[section].annotation) or ""
        rows = [_row(info) for key, info in schema_keys().items() if key.startswith(f"{section}.")]
        parts.append(f"\n## `{section}`\n\n{summary}\n\n{_HEADER}{''.join(rows)}")
    return "".join(parts)


def _row(info: KeyInfo) -> str:
    name = info.key.partition(".")[2]
    cells = (f"`{name}`", info.type, f"`{value_text(info.default)}`", info.description)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
