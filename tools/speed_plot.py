"""The page and the picture of speed, from the table in the README: nothing is measured here.

A bar is how a figure stands to its aim: twice as good as the aim reaches to 2. Rows without a
number on both sides, such as "no growth", stand in the table only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from typing import Final

TABLE: Final = re.compile(r"(?ms)^## Speed\n(?P<before>.*?)(?P<table>^\| what .*?)(?=^\S(?<!\|))")
NUMBER: Final = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
AIM: Final = re.compile(r"(?P<sign>[≥≤<>])\s*(?P<number>\d+(?:\.\d+)?)")

WIDTH, LEFT, RIGHT, ROW, TOP = 900, 430, 60, 20, 46
SHOWN_CHARS: Final = 68
LEAST, MOST = 0.1, 10.0


@dataclass(frozen=True)
class Figure:
    """One row: what was measured, and how often the aim was reached, as a range."""

    what: str
    text: str
    least: float
    most: float


def figures(readme: str) -> list[Figure]:
    """The rows of the table that have a plain number and a plain aim."""
    found = []
    for what, measured, aim in _rows(readme):
        wanted = AIM.fullmatch(aim)
        numbers = [float(text.replace(",", "")) for text in NUMBER.findall(measured)]
        plain = re.fullmatch(r"[\d.,]+(?:(?: to |\u2013)[\d.,]+)?", measured)
        if wanted is None or plain is None or not all(numbers):
            continue
        bound = float(wanted["number"])
        ratios = [n / bound if wanted["sign"] in "≥>" else bound / n for n in numbers]
        found.append(Figure(what, f"{measured} (aim {aim})", min(ratios), max(ratios)))
    return found


def _rows(readme: str) -> list[tuple[str, str, str]]:
    """Every row, with "the same" replaced by what it is the same as."""
    table = TABLE.search(readme)
    assert table, "the README has a section on speed with a table"
    rows, last = [], ""
    for line in table["table"].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) != 3:
            continue
        what = cells[0]
        if what.startswith("the same"):
            what = f"{last}{what.removeprefix('the same')}"
        else:
            last = re.split(r",? to ", what)[0]
        rows.append((what, cells[1], cells[2]))
    return rows


def speed_page(readme: str) -> str:
    """The section of the README as a page, with the picture."""
    table = TABLE.search(readme)
    assert table, "the README has a section on speed with a table"
    return (
        f"# Speed\n{table['before']}"
        "![How each figure stands to its aim](pictures/speed.svg)\n\n"
        "The line at 1 is the aim: a bar that passes it has reached it.\n\n"
        f"{table['table']}"
    )


def speed_plot(readme: str) -> str:
    """The picture, as SVG that is legible on a light and on a dark page."""
    rows = figures(readme)
    height = TOP + ROW * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="11">',
        "<title>How each figure stands to its aim</title>",
        "<style>text{fill:#3f4854}.axis{stroke:#9aa4b2}.aim{stroke:#d9534f;stroke-width:1.5}"
        ".met{fill:#2a9d8f}.missed{fill:#e0a030}.range{opacity:.45}"
        "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}}</style>",
        '<text x="10" y="18" font-size="13">How each figure stands to its aim '
        "(further right is better; logarithmic)</text>",
    ]
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        x, kind = _x(tick), "aim" if tick == 1 else "axis"
        bottom = height - 30
        opacity = "" if tick == 1 else ' opacity=".35"'
        parts.append(
            f'<line class="{kind}"{opacity} x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}"/>'
        )
        parts.append(f'<text x="{x}" y="{height - 14}" text-anchor="middle">{tick:g}</text>')
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        kind = "met" if row.most >= 1 else "missed"
        start, low, high = _x(LEAST), _x(row.least), _x(row.most)
        shown = _cut(row.what.replace("`", ""))
        parts += [
            f"<g><title>{escape(f'{row.what}: {row.text}')}</title>",
            f'<text x="{LEFT - 8}" y="{y + 9}" text-anchor="end">{escape(shown)}</text>',
            f'<rect class="{kind}" x="{start}" y="{y}" width="{low - start:.1f}" height="12"/>',
            f'<rect class="{kind} range" x="{low}" y="{y}" width="{high - low:.1f}" height="12"/>',
            "</g>",
        ]
    return "\n".join([*parts, "</svg>\n"])


def _cut(text: str) -> str:
    """Without its middle, if it is long: what is compared stands at its end."""
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[: SHOWN_CHARS // 2].rstrip(' ,')} … {text[3 - SHOWN_CHARS // 2 :].lstrip(' ,')}"


def _x(ratio: float) -> float:
    """Where a ratio stands, cut to what the picture shows."""
    part = math.log(max(LEAST, min(MOST, ratio)) / LEAST) / math.log(MOST / LEAST)
    return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)
