"""Pictures of measures: of many rows, of one, of none, always under the same names."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from matplotlib.figure import Figure

from holdfast.pipeline.audits import MEASURES
from holdfast.pipeline.audits.plots import LINES_MAX, PICTURES, draw, save_plots
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import arrow_schema
from holdfast.rules.errors import BadInput, UnknownKey

HOUR = datetime(2026, 1, 1, 12, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n"


def rows_of(name: str, number: int) -> list[dict[str, Any]]:
    """Rows of any measure, each with another value and time, of logs with difficult names."""
    found = []
    for place in range(number):
        names = ("$ana$", "_bob", "\U0001f98a")
        found.append(
            {
                **{"log": names[place % 3], "origin": "cid", "hour": HOUR + timedelta(hours=place)},
                **{"entries": 3, "p50_s": 0.5, "p95_s": place - 1.0, "max_s": 9.0, "last_at": HOUR},
                **{"mesh": names[place % 3], "family": "state", "owner": "", "entity": "k"},
                **{"day": date(2026, 1, 1) + timedelta(days=place), "overrides": place + 1},
                **{"peers": 2, "rows": 5, "bytes": 2**20 * (place + 1)},
            }
        )
    wanted = MEASURES[name].schema.names
    return [{column: row[column] for column in wanted} for row in found]


def table_of(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=arrow_schema(MEASURES[name].schema))


def points(figure: Figure) -> dict[str, list[float]]:
    return {
        str(line.get_label()): np.asarray(line.get_ydata(), dtype=float).tolist()
        for line in figure.axes[0].lines
    }


def test_P5_every_measure_has_its_picture() -> None:
    assert set(PICTURES) == set(MEASURES)


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("number", [0, 1, 7])
def test_P5_pictures_can_be_read_whatever_there_is(name: str, number: int) -> None:
    figure = draw(name, table_of(name, rows_of(name, number)))
    axes = figure.axes[0]
    assert axes.get_title()
    assert "(UTC)" in axes.get_xlabel()
    assert any(unit in axes.get_ylabel() for unit in ("(s)", "(MiB)", "per day"))
    drawn = points(figure)
    assert sum(len(values) for values in drawn.values()) == number
    said = [text.get_text() for text in axes.texts]
    assert said == ([] if number else ["nothing yet"])
    legend = axes.get_legend()
    shown = 0 if legend is None else len(legend.get_texts())
    assert shown == min(number, 3)
    if number:
        low, high = axes.get_xlim()
        assert high > low


def test_P5_sums_and_units_are_right() -> None:
    day = {"mesh": "team", "day": date(2026, 1, 1), "rows": 1}
    sizes = [("state", 3 * 2**19), ("state", 2**19), ("task", 2**20)]
    rows = [{**day, "family": family, "bytes": size} for family, size in sizes]
    assert points(draw("growth", table_of("growth", rows))) == {
        "team state": [2.0],
        "team task": [1.0],
    }


def test_P5_only_the_largest_lines_stand_alone() -> None:
    day = {"family": "state", "day": date(2026, 1, 1), "rows": 1}
    rows = [{**day, "mesh": f"m{size:02}", "bytes": 2**20 * size} for size in range(1, 21)]
    drawn = points(draw("growth", table_of("growth", rows)))
    assert len(drawn) == LINES_MAX
    assert drawn.pop("all others") == [float(sum(range(1, 12)))]
    assert list(drawn) == [f"m{size} state" for size in range(12, 21)]


@pytest.mark.parametrize(("format", "begins"), [("png", PNG), ("svg", b"<?xml")])
def test_P5_pictures_are_saved_under_the_same_names(
    tmp_path: Path, format: str, begins: bytes
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    write_deltalake(f"{lake.root}/gold/lag", table_of("lag", rows_of("lag", 3)))
    folder = tmp_path / "pictures"
    paths = save_plots(lake, folder, format=format)
    assert paths == [folder / f"{name}.{format}" for name in MEASURES]
    assert all(path.read_bytes().startswith(begins) for path in paths)
    assert save_plots(lake, folder, ["lag"], format=format) == [folder / f"lag.{format}"]


def test_P5_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with pytest.raises(UnknownKey, match="weather"):
        save_plots(lake, tmp_path, ["weather"])
    with pytest.raises(BadInput, match="gif"):
        save_plots(lake, tmp_path, format="gif")
