"""What the demo showed, as files: a terminal recording (asciicast 2) and pictures (SVG)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.apps.demo.screen import COLUMNS, ShownLine

_ROWS: Final = 30
_TITLE: Final = "holdfast demo"
_FRAME: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: \
{char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" \
height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""The frame that rich fills, with fonts that are there: a picture asks no other host for one."""


def cast(lines: Sequence[ShownLine], began_at_s: int) -> str:
    """The recording: a header, and one event for each line."""
    sizes = {"width": COLUMNS, "height": _ROWS}
    header = {"version": 2, **sizes, "timestamp": began_at_s, "title": _TITLE}
    events = [(round(line.at_s, 3), "o", f"{line.coloured}\r\n") for line in lines]
    documents: list[object] = [header, *events]
    return "".join(f"{msgspec.json.encode(one).decode()}\n" for one in documents)


def picture(lines: Sequence[ShownLine], title: str = _TITLE) -> str:
    """These lines on a terminal, as SVG."""
    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    for line in lines:
        console.print(Text.from_ansi(line.coloured), highlight=False, soft_wrap=True)
    return console.export_svg(title=title, code_format=_FRAME, unique_id="demo")


def save(lines: Sequence[ShownLine], file: Path, began_at_s: int) -> list[Path]:
    """Writes the recording to the file, and pictures beside it: of all chapters, and of each.
    The files that it wrote.
    """
    shown = list(dict.fromkeys(line.chapter for line in lines if line.chapter))
    last = max(number for number, line in enumerate(lines) if line.chapter)
    pictures = {file.with_suffix(".svg"): picture(lines[: last + 1])}
    for name in shown:
        own = [line for line in lines if line.chapter == name]
        first = next(number for number, line in enumerate(own) if line.coloured)
        beside = file.with_name(f"{file.stem}-{name}.svg")
        pictures[beside] = picture(own[first:], f"{_TITLE} {name}")
    file.write_text(cast(lines, began_at_s), encoding="utf-8")
    for place, text in pictures.items():
        place.write_text(text, encoding="utf-8")
    return [file, *pictures]
