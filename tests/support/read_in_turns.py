"""A lake of two nodes that know the same, read in turns, and what it holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.leaf import leaf_of
from support.filled_lake import pour
from support.histories import Histories, grow

TABLES: Final = ("bronze", "sightings", "quarantine", "reads")
Place = tuple[str, int, int]


class ReadInTurns(NamedTuple):
    lake: Lake
    older: Path
    """A copy of the lake's folder as it was half-way."""
    histories: Histories

    def copied(self, folder: Path) -> ReadInTurns:
        """The same lake and homes once more, to be harmed."""
        folder.mkdir(exist_ok=True)
        shutil.copytree(self.lake.root, folder / "lake")
        homes = {}
        for number, (peer, home) in enumerate(self.histories.homes.items()):
            homes[peer] = folder / f"home-{number}"
            shutil.copytree(home, homes[peer])
        known = self.histories
        histories = Histories(
            known.seed, homes, known.meshes, known.heads, known.refused, known.clocks
        )
        return ReadInTurns(Lake.open(folder / "lake"), self.older, histories)


def read_in_turns(folder: Path, then: Callable[[Lake], object] | None = None) -> ReadInTurns:
    """Both nodes have an entry that cannot be read, early and late. `then` is called after each
    half.
    """
    histories = grow(41, folder, nodes=2, meshes=2, ops=90)
    for home in histories.homes.values():
        for offset in (5, 30):
            spoil(home, offset)
    lake = Lake.open(folder / "lake", create=True)
    for number, upto in enumerate((9, 20, 31, None)):
        if number == 2:
            if then is not None:
                then(lake.fresh())
            shutil.copytree(lake.root, folder / "older")
        pour(lake, *histories.homes.values(), upto=upto)
    if then is not None:
        then(lake.fresh())
    return ReadInTurns(lake, folder / "older", histories)


def spoil(home: Path, offset: int) -> None:
    """Makes an entry one that was let in with bytes that cannot be read."""
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        found = connection.execute("SELECT raw FROM log WHERE offset = ?", (offset,)).get
        assert isinstance(found, bytes)
        short = found[:-3]
        connection.execute(
            "UPDATE log SET raw = ?, leaf = ? WHERE offset = ?", (short, leaf_of(short), offset)
        )


def forget_before(home: Path, offset: int) -> None:
    """The node truncates its log."""
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        connection.execute("DELETE FROM log WHERE offset < ?", (offset,))


def table_of(lake: Lake, name: str) -> Table:
    found = getattr(lake.fresh(), name)
    assert isinstance(found, Table)
    return found


def held_places(lake: Lake) -> set[Place]:
    """Every place that a reader of the lake can find an envelope or a reason for."""
    bronze = table_of(lake, "bronze").load(table_of(lake, "bronze").files(), ["id"])[0]
    ids = set(bronze["id"].to_pylist())
    found: set[Place] = set()
    for name in TABLES[:3]:
        table = table_of(lake, name)
        rows = table.load(table.files(), ["log", "epoch", "offset", "id"])[0].to_pylist()
        found |= {
            (row["log"], row["epoch"], row["offset"])
            for row in rows
            if name != "sightings" or row["id"] in ids
        }
    return found
