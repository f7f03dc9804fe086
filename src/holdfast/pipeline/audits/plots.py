"""Pictures of what was measured: lag, staleness, conflicts, growth, one file each.

They are drawn from gold alone, without a screen, and have the same file names every time, so that a
folder always has the newest ones. The picture of a measure without rows says "nothing yet".
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib.dates
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from holdfast.pipeline.audits import MEASURES
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.errors import BadInput, UnknownKey
from holdfast.rules.limits import MIB
from holdfast.storage.files.durable import disk_errors, make_folder

FORMATS: Final = ("png", "svg")
LINES_MAX: Final = 10
"""A reader cannot tell more lines apart; the rest is drawn as one line."""
_REST: Final = "all others"
_SIZE: Final = (9.0, 4.5)
_DOTS: Final = 110
_dates: Final[Any] = matplotlib.dates  # which says nothing of its types

Line = dict[Any, float]
"""A value for each time."""


@dataclass(frozen=True)
class _Picture:
    """What one measure looks like."""

    title: str
    unit: str
    lines: Callable[[pa.Table], Mapping[str, Line]]
    whole: bool = False
    """Whether its values are whole numbers."""


def save_plots(
    lake: Lake, folder: Path, names: Iterable[str] | None = None, *, format: str = "png"
) -> list[Path]:
    """Draws measures, all of them without `names`, into `folder` as `<measure>.<format>`; returns
    the paths.
    """
    if format not in FORMATS:
        raise BadInput(f"no picture can be saved as {format!r}", hint=f"use {' or '.join(FORMATS)}")
    wanted = list(MEASURES if names is None else dict.fromkeys(names))
    for name in wanted:
        if name not in PICTURES:
            raise UnknownKey(f"there is no picture of {name!r}", hint=f"use: {', '.join(PICTURES)}")
    if not folder.is_dir():
        make_folder(folder)
    return [_save(lake, folder / f"{name}.{format}", name, format) for name in wanted]


def _save(lake: Lake, path: Path, name: str, format: str) -> Path:
    delta = lake.gold(name, MEASURES[name].schema).delta
    rows = None if delta is None else delta.to_pyarrow_table()
    figure = draw(name, rows)
    canvas = FigureCanvasSVG if format == "svg" else FigureCanvasAgg
    # Without the date, the same figures give the same file.
    metadata = {"Date": None} if format == "svg" else {"Software": None}
    with disk_errors(f"write {path}"), warnings.catch_warnings():
        # A name may have letters that the font lacks; they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph ")
        canvas(figure).print_figure(path, format=format, dpi=_DOTS, metadata=metadata)
    return path


def draw(name: str, rows: pa.Table | None) -> Figure:
    """The picture of a measure with these rows; None or no rows give an empty one."""
    picture = PICTURES[name]
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(picture.title)
    axes.set_ylabel(picture.unit)
    axes.set_xlabel("time (UTC)")
    lines = {} if rows is None or not rows.num_rows else picture.lines(rows)
    if not lines:
        axes.text(0.5, 0.5, "nothing yet", ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return figure
    for label, line in lines.items():
        times = sorted(line)
        axes.plot(
            times, [line[time] for time in times], marker="o", markersize=3, label=_label(label)
        )
    locator = _dates.AutoDateLocator(minticks=3, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator))
    if picture.whole:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    low = min(0.0, *(value for line in lines.values() for value in line.values()))
    axes.set_ylim(bottom=None if low < 0 else 0)
    _give_room(axes, {time for line in lines.values() for time in line})
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)
    return figure


def _label(name: str) -> str:
    """A name as a label: `$` is no formula, and a leading underscore does not hide the line."""
    plain = name.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def _give_room(axes: Any, times: set[Any]) -> None:
    """Shows a whole day around a single point, which has no width of its own."""
    if len(times) == 1:
        middle = axes.convert_xunits(next(iter(times)))
        axes.set_xlim(middle - 0.5, middle + 0.5)


# --- from rows to lines --------------------------------------------------------------------------


def _delays(*of: str) -> Callable[[pa.Table], Mapping[str, Line]]:
    """Lines of the 95th percentile of the delay, per hour."""

    def lines(rows: pa.Table) -> Mapping[str, Line]:
        names = [" from ".join(parts) for parts in zip(*_texts(rows, of), strict=True)]
        return _worst(names, rows["hour"].to_pylist(), rows["p95_s"].to_pylist())

    return lines


def _overrides(rows: pa.Table) -> Mapping[str, Line]:
    return _summed(rows, ("mesh", "family"), "overrides", 1)


def _bytes(rows: pa.Table) -> Mapping[str, Line]:
    return _summed(rows, ("mesh", "family"), "bytes", MIB)


def _summed(rows: pa.Table, of: tuple[str, ...], column: str, unit: int) -> Mapping[str, Line]:
    """Lines of sums per day: the largest ones, and the sum of all others."""
    sums = rows.group_by([*of, "day"]).aggregate([(column, "sum")])
    names = [" ".join(parts) for parts in zip(*_texts(sums, of), strict=True)]
    values = pc.divide(pc.cast(sums[f"{column}_sum"], pa.float64()), float(unit)).to_pylist()
    lines = _gather(names, sums["day"].to_pylist(), values)
    return _first(lines, lambda line: sum(line.values()), operator.add)


def _worst(names: list[str], times: list[datetime], values: list[float]) -> Mapping[str, Line]:
    """The slowest lines, and for all others together the slowest value of each hour."""
    return _first(_gather(names, times, values), lambda line: max(line.values()), max)


def _first(
    lines: dict[str, Line],
    weight: Callable[[Line], float],
    together: Callable[[float, float], float],
) -> Mapping[str, Line]:
    ranked = sorted(lines, key=lambda name: (-weight(lines[name]), name))
    if len(ranked) <= LINES_MAX:
        return {name: lines[name] for name in sorted(ranked)}
    alone = ranked[: LINES_MAX - 1]
    rest: Line = {}
    for name in ranked[LINES_MAX - 1 :]:
        for time, value in lines[name].items():
            rest[time] = together(rest[time], value) if time in rest else value
    return {**{name: lines[name] for name in sorted(alone)}, _REST: rest}


def _gather(names: list[str], times: list[Any], values: list[float]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for name, time, value in zip(names, times, values, strict=True):
        if value is not None:
            lines.setdefault(name, {})[_plain(time)] = value
    return lines


def _plain(time: date | datetime) -> date | datetime:
    """A time without its zone, which is always UTC."""
    return time.replace(tzinfo=None) if isinstance(time, datetime) else time


def _texts(rows: pa.Table, columns: Iterable[str]) -> list[list[str]]:
    return [rows[column].to_pylist() for column in columns]


PICTURES: Final[dict[str, _Picture]] = {
    "lag": _Picture("From a change to each log", "delay, 95th percentile (s)", _delays("log")),
    "staleness": _Picture(
        "From a change to the logs of others",
        "delay, 95th percentile (s)",
        _delays("log", "origin"),
    ),
    "conflicts": _Picture(
        "Writes over something unseen", "overrides per day", _overrides, whole=True
    ),
    "growth": _Picture("What is written", "envelopes per day (MiB)", _bytes),
}
