"""Draw the packages of tfmp and who imports whom: ``python docs/images/architecture.py`` writes architecture.svg.

A box is a package, with the first sentence of its docstring; an arrow goes from a package to one that it imports.
Boxes stand in the layers that ``make lint`` holds (``pyproject.toml``, import-linter). Left out are arrows to the
lowest layer, which all use, and those that a chain of other arrows implies.
"""

from __future__ import annotations

import ast
import html
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tfmp"

#: From top to bottom; the last is the one that all may use.
LAUNCHER = (
    ("cli",),
    ("commands",),
    ("agent", "bench", "deploy"),
    ("workers", "rendezvous", "planning", "report"),
    ("cluster", "config", "rundir"),
)
WORKER = (("trainer",), ("checkpoint",), ("distribute",), ("data",))
SHARED = ("errors", "events", "ipc", "procfs", "text")

_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _MARGIN = 190, 74, 22, 46, 24
_WRAP = 29


def main() -> None:
    """Write the picture beside this file."""
    Path(__file__).with_suffix(".svg").write_text(draw(), encoding="utf-8")


def imports() -> set[tuple[str, str]]:
    """Return pairs (importing package, imported package); modules of the top level count as packages."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "tfmp" and len(parts) > 1 and parts[1] != source:
                    found.add((source, parts[1]))
    return found


def direct(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs that no chain of others implies."""

    def reaches(source: str, target: str, without: tuple[str, str]) -> bool:
        seen, todo = {source}, [source]
        while todo:
            package = todo.pop()
            for pair in pairs - {without}:
                if pair[0] == package and pair[1] not in seen:
                    if pair[1] == target:
                        return True
                    seen.add(pair[1])
                    todo.append(pair[1])
        return False

    return {pair for pair in pairs if not reaches(*pair, without=pair)}


def summary(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    path = PACKAGE / package / "__init__.py"
    module = path if path.exists() else PACKAGE / f"{package}.py"
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".").replace("``", "")


def draw() -> str:
    """Return the picture as SVG."""
    wide = max(map(len, LAUNCHER))
    launcher_w = wide * (_BOX_W + _GAP_X) - _GAP_X
    worker_x = _MARGIN + launcher_w + 2 * _GAP_X + 20
    places: dict[str, tuple[float, float]] = {}
    for row, packages in enumerate(LAUNCHER):
        row_w = len(packages) * (_BOX_W + _GAP_X) - _GAP_X
        for column, package in enumerate(packages):
            x = _MARGIN + (launcher_w - row_w) / 2 + column * (_BOX_W + _GAP_X)
            places[package] = (x, 54 + row * (_BOX_H + _GAP_Y))
    for row, (package,) in enumerate(WORKER):
        places[package] = (worker_x, 54 + (row + 1) * (_BOX_H + _GAP_Y))
    width = worker_x + _BOX_W + _MARGIN
    shared_y = 54 + len(LAUNCHER) * (_BOX_H + _GAP_Y)
    height = shared_y + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#7a8794"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="30" font-size="15" fill="#44505c">launcher (no TensorFlow)</text>',
        f'<text x="{worker_x:.0f}" y="{54 + _BOX_H + _GAP_Y - 12}" font-size="15" fill="#44505c">worker</text>',
    ]
    pairs = {pair for pair in imports() if pair[0] in places and pair[1] in places}
    parts += [_arrow(places[source], places[target]) for source, target in sorted(direct(pairs))]
    workers = {package for (package,) in WORKER}
    parts += [
        _box(places[package], package, summary(package), "#fdf1e3" if package in workers else "#e8f1fa")
        for package in places
    ]
    names = ", ".join(f"{name}.py" for name in SHARED)
    parts.append(
        f'<rect x="{_MARGIN}" y="{shared_y}" width="{width - 2 * _MARGIN:.0f}" height="40" rx="6" fill="#eef0f2"/>'
        f'<text x="{_MARGIN + 14}" y="{shared_y + 25}" font-size="14" fill="#22303c">used by all: {names}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrow(source: tuple[float, float], target: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = source, target
    if y2 > y1:
        begin, end = (x1 + _BOX_W / 2, y1 + _BOX_H), (x2 + _BOX_W / 2, y2 - 2)
    elif y2 < y1:
        begin, end = (x1 + _BOX_W / 2, y1), (x2 + _BOX_W / 2, y2 + _BOX_H + 2)
    else:
        side = 1 if x2 > x1 else 0
        begin, end = (x1 + _BOX_W * side, y1 + 12), (x2 + _BOX_W * (1 - side), y2 + 12)
    return (
        f'<line x1="{begin[0]:.0f}" y1="{begin[1]:.0f}" x2="{end[0]:.0f}" y2="{end[1]:.0f}" '
        'stroke="#7a8794" stroke-opacity="0.55" marker-end="url(#head)"/>'
    )


def _box(place: tuple[float, float], name: str, text: str, fill: str) -> str:
    x, y = place
    lines = textwrap.wrap(text, _WRAP)[:3]
    body = "".join(
        f'<text x="{x + 10:.0f}" y="{y + 36 + 14 * i:.0f}" font-size="11" fill="#44505c">{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_BOX_W}" height="{_BOX_H}" rx="6" fill="{fill}" stroke="#9fb0c0"/>'
        f'<text x="{x + 10:.0f}" y="{y + 20:.0f}" font-size="14" font-weight="bold" fill="#22303c">{name}</text>{body}'
    )


if __name__ == "__main__":
    main()
