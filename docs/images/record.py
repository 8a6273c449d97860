"""Record the README's picture from a real run on a real terminal: ``python docs/images/record.py`` (needs tmux).

The run's own output is captured twice, in the middle and at the end, and drawn as it stood on the screen.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLUMNS, _ROWS = 116, 40
_SOCKET = f"tfmp-record-{time.time_ns()}"
_COMMAND = "tfmp train configs/mnist.yaml"


def tmux(*arguments: str) -> str:
    """Run a tmux command on a server of our own."""
    return subprocess.run(["tmux", "-L", _SOCKET, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Run, capture, draw."""
    root = Path(__file__).resolve().parent.parent.parent
    with tempfile.TemporaryDirectory() as scratch:
        tool = f"PYTHONPATH={root} {sys.executable} -m tfmp train {root}/configs/mnist.yaml"
        script = f"cd {scratch}; {tool}; echo finished > {scratch}/end; sleep 60"
        tmux("new-session", "-d", "-x", str(_COLUMNS), "-y", str(_ROWS), script)
        middle = screen = ""
        while not Path(scratch, "end").exists():
            time.sleep(0.1)
            screen = tmux("capture-pane", "-e", "-p")
            if "epoch 4/5 " in screen and "━" in screen:
                middle = middle or screen
        screen = tmux("capture-pane", "-e", "-p")
        tmux("kill-server")
        screen = screen.rstrip()
        bar = next((line for line in middle.splitlines() if "━" in line), "")
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {_COMMAND}", style="bold"))
    lines = screen.splitlines()
    place = next((i for i, line in enumerate(lines) if "epoch 4/5" in line), len(lines))
    for line in [*lines[:place], bar, *lines[place:]] if bar else lines:
        console.print(Text.from_ansi(line))
    console.save_svg(str(root / "docs" / "images" / "train.svg"), title="tfmp")


if __name__ == "__main__":
    main()
