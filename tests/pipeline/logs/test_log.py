"""Logs, wherever they are: the same rows from a node, a home, a backup and an export."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

import holdfast
from holdfast.node.exchange.export import export
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.settings import Settings
from holdfast.node.trust.trust import Trust
from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.arrow import LOG, uuid_texts
from holdfast.pipeline.logs.http import NodeLog
from holdfast.pipeline.logs.log import LogBounds, ReadableLog, open_log
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    BadValue,
    EpochChanged,
    HoldfastError,
    PastEnd,
    StoreCorrupt,
    Truncated,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.filters import Filter
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Entry
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.connection import connect
from holdfast.transport.tls import certificate_digest
from support.daemon import UpInThread, process, running
from support.keeping import fill, make_home, team

HASTE = {"retries": "0"}
BULK = "x" * 60_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of seven, so that a short log has several."""
    monkeypatch.setattr("holdfast.pipeline.logs.disk.SOURCE_BATCH_ROWS", 7)
    monkeypatch.setattr("holdfast.pipeline.logs.export.SOURCE_BATCH_ROWS", 7)
    monkeypatch.setattr("holdfast.node.http.ranges.RANGE_BATCH_ROWS", 7)


@dataclass
class Kept:
    """One log, in every place that a log can be."""

    home: Path
    up: UpInThread
    ways: dict[str, str]
    entries: list[Entry]

    def open(self, way: str) -> ReadableLog:
        return open_log(self.ways[way])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("kept")
    with make_home(folder / "home") as node:
        fill(team(node), 4)
        team(node).state.set("schlüssel/ключ", "🦊" * 20)
        team(node).facts.append("line\nbreak\t,", "is", {"a": [1, "\u2028"]})
        backup(node, folder / "backup")
        with (folder / "log.jsonl").open("wb") as out:
            export(node, out)
        entries = list(node.log.range())
    with running(folder / "home") as up:
        ways = {
            "node": up.unix,
            "home": str(folder / "home"),
            "backup": str(folder / "backup"),
            "export": str(folder / "log.jsonl"),
        }
        yield Kept(folder / "home", up, ways, entries)


WAYS = pytest.mark.parametrize("way", ["node", "home", "backup", "export"])


def rows(batches: Iterator[pa.RecordBatch]) -> list[Entry]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == LOG
        assert set(batch.column("log").to_pylist()) == {"ana"}
        assert set(batch.column("epoch").to_pylist()) == {1}
        columns = {name: batch.column(name).to_pylist() for name in LOG.names[2:]}
        columns["id"] = [UUID(text).bytes for text in columns["id"]]
        columns["recorded_at"] = [round(time.timestamp() * 1000) for time in columns["recorded_at"]]
        found += [Entry(*row) for row in zip(*columns.values(), strict=True)]
    return found


# --- The same rows from everywhere -------------------------------------------------------------


@WAYS
def test_P1_every_kind_of_log_gives_every_value_of_it(kept: Kept, way: str) -> None:
    log = kept.open(way)
    place = log.place()
    assert place == LogBounds("ana", 1, 1, len(kept.entries))
    batches = list(log.batches(1, 1, place.head + 1))
    assert len(batches) == -(-len(kept.entries) // 7)
    assert rows(iter(batches)) == kept.entries
    log.close()


@WAYS
def test_P1_a_range_is_half_open_wherever_it_begins(kept: Kept, way: str) -> None:
    log = pickle.loads(pickle.dumps(kept.open(way)))
    head = len(kept.entries)
    for start, stop in ((1, 2), (5, 5), (7, 8), (6, 15), (head, head + 1), (2, head)):
        found = [entry.offset for entry in rows(log.batches(1, start, stop))]
        assert found == list(range(start, stop)), (start, stop)
    assert list(log.batches(1, head + 1, head + 1)) == []
    log.close()


@WAYS
def test_P1_a_filter_gives_what_passes_and_nothing_else(kept: Kept, way: str) -> None:
    log = kept.open(way)
    for filter in (
        Filter(classes=("facts",)),
        Filter(subjects=("key-", "schlüssel")),
        Filter(meshes=("team",), origins=("ana",)),
        Filter(meshes=("other",)),
    ):
        found = rows(log.batches(1, 3, len(kept.entries) + 1, filter))
        assert found == [
            entry
            for entry in kept.entries[2:]
            if filter.passes(entry.mesh, entry.op, entry.entity, entry.origin, "")
        ]
    log.close()


@WAYS
def test_P1_what_a_log_does_not_hold_is_an_error_that_names_it(kept: Kept, way: str) -> None:
    log = kept.open(way)
    head = len(kept.entries)
    with pytest.raises(
        EpochChanged, match=f"offsets 2 to 3 in epoch 9 of log.*{log.location}"
    ) as e:
        list(log.batches(9, 2, 4))
    assert e.value.epoch == 1
    with pytest.raises(PastEnd, match=f"offsets 2 to {head + 1} in epoch 1 of log 'ana'"):
        list(log.batches(1, 2, head + 2))
    log.close()


def test_P1_a_log_can_be_given_another_name(kept: Kept) -> None:
    for location in kept.ways.values():
        log = open_log(location, {"name": "old ana"})
        assert log.place().log == "old ana"
        assert next(iter(log.batches(1, 1, 3))).column("log").to_pylist() == ["old ana"] * 2
        log.close()


def test_P1_the_columns_are_those_that_spark_is_told_of() -> None:
    assert to_arrow_schema(schema.LOG, timezone="UTC") == LOG


def test_P1_ids_become_the_text_that_people_know(kept: Kept) -> None:
    ids = [bytes(range(16)), b"\xff" * 16, *(entry.id for entry in kept.entries)]
    assert uuid_texts(b"".join(ids)).to_pylist() == [id_text(id) for id in ids]
    assert uuid_texts(b"").to_pylist() == []


# --- Readers that are waited for ---------------------------------------------------------------


@pytest.mark.parametrize("served", [False, True])
def test_P1_a_reader_is_registered_and_confirms(tmp_path: Path, served: bool) -> None:
    with make_home(tmp_path / "home") as node:
        fill(team(node), 3)
        head = node.log.head().offset
    with running(tmp_path / "home") as up:
        log = open_log(up.unix if served else str(tmp_path / "home"))
        log.register("lake", 3)
        log.register("lake", 1)
        node = up.daemon.api.node
        (consumer,) = node.log.consumers()
        assert (consumer.name, consumer.frontier) == ("lake", 2)
        log.confirm("lake", 1, 5)
        log.confirm("lake", 1, 4)
        assert node.log.consumers()[0].frontier == 5
        with pytest.raises(EpochChanged):
            log.confirm("lake", 2, head)
        with pytest.raises(PastEnd):
            log.confirm("lake", 1, head + 1)
        assert node.log.consumers()[0].frontier == 5
        log.close()


def test_P1_a_home_is_read_while_its_daemon_writes(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        for n in range(20):
            team(node).state.set("k", n)
    with running(tmp_path / "home") as up:
        log = open_log(str(tmp_path / "home"))
        batches = log.batches(1, 1, 21)
        first = next(batches)
        for n in range(200):
            up.daemon.api.node.mesh("team").state.set("k", n)
        found = [first, *batches]
        assert [n for b in found for n in b.column("offset").to_pylist()] == list(range(1, 21))
        assert log.place().head == 220


@pytest.mark.parametrize("served", [False, True])
def test_P1_a_log_that_is_truncated_under_a_reader_tells_it(tmp_path: Path, served: bool) -> None:
    with make_home(tmp_path / "home") as node:
        for n in range(200):  # more than is on its way at any time
            team(node).state.set("k", [n, BULK])
    with running(tmp_path / "home") as up:
        log = open_log(up.unix if served else str(tmp_path / "home"))
        engine = up.daemon.api.engine
        batches = log.batches(1, 1, 201)
        given = next(batches).column("offset").to_pylist()
        now = engine.ctx.now_ms()
        engine.write("sweep.log", lambda tx: tx.log_truncate(195, 195, now))
        with pytest.raises(Truncated, match=r"in epoch 1 of log 'ana' at") as error:
            given.extend(n for batch in batches for n in batch.column("offset").to_pylist())
        assert error.value.first_available == 195
        # A node may have had more on its way; nothing is ever passed over.
        assert given == list(range(1, len(given) + 1))
        assert len(given) < 194
        with pytest.raises(Truncated, match="offsets 3 to 199"):
            list(log.batches(1, 3, 200))
        log.close()


def test_P1_a_restored_home_counts_in_a_new_epoch(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        team(node).state.set("k", 1)
        backup(node, tmp_path / "backup")
        team(node).state.set("k", 2)
    log = open_log(str(tmp_path / "home"))
    assert log.place() == LogBounds("ana", 1, 1, 2)
    restore(tmp_path / "backup", tmp_path / "home", force=True)
    with pytest.raises(EpochChanged):
        list(log.batches(1, 1, 3))
    assert log.place() == LogBounds("ana", 2, 1, 1)
    assert open_log(str(tmp_path / "backup")).place() == LogBounds("ana", 1, 1, 1)


# --- Nodes ---------------------------------------------------------------------------------------


def test_P1_a_token_and_a_pinned_certificate_reach_a_node_from_anywhere(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        node.create_mesh("other")
        team(node).state.set("k", 1)
        node.mesh("other").state.set("k", 2)
    with running(tmp_path / "home", Settings(listen="127.0.0.1:0", tcp="127.0.0.1:0")) as up:
        token = Trust(up.daemon.api.engine, HomePaths(up.home)).add_token("report", reads=["other"])
        certificate = tmp_path / "home" / "tls.crt"
        pin = certificate_digest(certificate).hex()
        (tmp_path / "token").write_text(f"{token}\n")
        for options in (
            {"token_file": str(tmp_path / "token"), "pin": pin},
            {"tokenfile": str(tmp_path / "token"), "pin": str(certificate)},
            {"token": token, "pin": ":".join([pin[n : n + 2] for n in range(0, 64, 2)]).upper()},
        ):
            log = open_log(up.tls, options)
            assert log.place().head == 2
            (batch,) = log.batches(1, 1, 3)
            assert batch.column("mesh").to_pylist() == ["other"]
            assert token not in repr(log)
            log.close()
        log = open_log(
            f"https://localhost:{up.tls.rpartition(':')[2]}",
            {
                "token": token,
                "ca": str(certificate),
                "retries": "0",
            },
        )
        assert log.place().log == "ana"
        log.register("token:report/lake", 1)
        log.confirm("token:report/lake", 1, 2)
        log.close()
        for options, expected in (
            ({"token": token, "pin": "00" * 32}, ZoneNotTrusted),
            ({"token": token}, BadAnswer),
            ({"pin": pin}, BadToken),
            ({"token_file": str(tmp_path / "none")}, BadToken),
            ({"token": token, "pin": "abc"}, BadInput),
            ({"token": token, "ca": str(tmp_path / "token")}, BadInput),
            ({"retries": "many"}, BadInput),
        ):
            with pytest.raises(expected) as error:
                look(up.tls, {**HASTE, **options})
            assert token not in str(error.value)


def look(address: str, options: dict[str, str]) -> LogBounds:
    log = open_log(address, options)
    try:
        return log.place()
    finally:
        log.close()


def test_P1_a_node_that_comes_back_is_read_on_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Full sync: a log that may have lost something would count in a new epoch.
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="full") as node:
        node.create_mesh("team")
        for n in range(300):
            team(node).state.set("k", [n, BULK])
    full = {"HOLDFAST_STORE_SYNC": "full"}
    waits = []
    with ExitStack() as later:
        first = later.enter_context(process(tmp_path / "home", env=full))

        def come_back(self: NodeLog, failures: int) -> None:
            waits.append(failures)
            later.enter_context(process(tmp_path / "home", env=full))

        monkeypatch.setattr("holdfast.pipeline.logs.http.NodeLog._pause", come_back)
        log = open_log(first.unix)
        batches = log.batches(1, 1, 301)
        found = [next(batches)]
        first.kill()
        found += batches
        log.close()
    assert waits == [1]
    assert [n for b in found for n in b.column("offset").to_pylist()] == list(range(1, 301))


def test_P1_a_node_that_stays_away_is_an_error_that_says_where(tmp_path: Path) -> None:
    log = open_log(f"unix:{tmp_path}/api.sock", HASTE)
    with pytest.raises(Unreachable, match=r"api\.sock"):
        log.place()
    with pytest.raises(Unreachable, match=r"offsets 3 to 8 in epoch 1 of the log at .*api\.sock"):
        list(log.batches(1, 3, 9))


def test_P1_half_a_stream_is_not_taken_for_a_whole_one(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(kept.ways["node"], HASTE)
    assert isinstance(log, NodeLog)
    whole = b"".join(log._client.stream("GET", "/v1/facts/range", headers=_ACCEPT))
    for cut in (8, 9, 4, 100, len(whole) - 10, len(whole) - 900):
        monkeypatch.setattr(log._client, "stream", lambda *_, n=cut, **__: given([whole[:-n]]))
        with pytest.raises((Unreachable, BadAnswer)):
            list(log.batches(1, 1, len(kept.entries) + 1))
    monkeypatch.setattr(log._client, "stream", lambda *_, **__: given([whole, b"more"]))
    with pytest.raises((Unreachable, BadAnswer)):
        list(log.batches(1, 1, len(kept.entries) + 1))
    pieces = [whole[n : n + 13] for n in range(0, len(whole), 13)]
    monkeypatch.setattr(log._client, "stream", lambda *_, **__: given(pieces))
    assert rows(log.batches(1, 1, len(kept.entries) + 1)) == kept.entries
    with pytest.raises(BadAnswer, match="out of order"):
        list(log.batches(1, 2, len(kept.entries) + 1))
    log.close()


def given(pieces: list[bytes]) -> Iterator[bytes]:
    yield from pieces


_ACCEPT = {"Accept": "application/vnd.apache.arrow.stream"}


# --- What is not a log -------------------------------------------------------------------------


def test_P1_what_is_no_log_is_refused(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello\n")
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "file", "empty"):
        with pytest.raises(HoldfastError) as error:
            open_log(str(tmp_path / name)).place()
        assert error.value.exit_code in (2, 4)
    shutil.copytree(kept.ways["backup"], tmp_path / "cut")
    database = tmp_path / "cut" / "data.db"
    database.write_bytes(database.read_bytes()[:-4096])
    with pytest.raises(StoreCorrupt, match="not the one that was backed up"):
        open_log(str(tmp_path / "cut"))


def test_P1_a_damaged_export_is_refused_where_it_is_planned(kept: Kept, tmp_path: Path) -> None:
    whole = Path(kept.ways["export"]).read_bytes()
    bad = tmp_path / "bad.jsonl"
    for content in (whole[:-1], whole[: len(whole) // 2], whole.replace(b'"n":2', b'"n":3', 1)):
        bad.write_bytes(content)
        with pytest.raises(BadValue, match=str(bad)):
            open_log(str(bad)).place()
    # Damaged after it was planned: a task finds out, or gives what is right.
    log = open_log(str(bad))
    bad.write_bytes(whole)
    assert log.place().head == len(kept.entries)
    at = whole.rindex(b'{"kind":"log"')
    bad.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
    with pytest.raises(BadValue, match="of log 'ana' at"):
        list(log.batches(1, 1, len(kept.entries) + 1))
    with pytest.raises(BadValue):
        log.place()


def test_P1_an_export_without_the_log_says_so(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "home", peer="ana", create=True) as node:
        node.create_mesh("team")
        with (tmp_path / "none.jsonl").open("wb") as out:
            export(node, out)
        node.mesh("team").state.set("k", 1)
        with (tmp_path / "no-log.jsonl").open("wb") as out:
            export(node, out, log=False)
    assert open_log(str(tmp_path / "none.jsonl")).place() == LogBounds("ana", 1, 1, 0)
    with pytest.raises(BadInput, match="no lines of the log"):
        open_log(str(tmp_path / "no-log.jsonl")).place()


def test_P1_batches_are_bound_in_bytes_and_one_entry_always_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pipeline.logs.disk.SOURCE_BATCH_BYTES", 2000)
    with make_home(tmp_path / "home") as node:
        for size in (10, 10, 3000, 1200, 1200, 10):
            team(node).state.set("k", "x" * size)
    log = open_log(str(tmp_path / "home"))
    found = [batch.column("offset").to_pylist() for batch in log.batches(1, 1, 7)]
    assert found == [[1, 2], [3], [4], [5, 6]]


def test_P1_a_large_entry_among_small_ones_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a light read leaves out, the one that looks at sizes first finds."""
    monkeypatch.setattr("holdfast.pipeline.logs.disk.SOURCE_BATCH_BYTES", 7 * 500)
    large = "x" * 5_000
    with make_home(tmp_path / "home") as node:
        for number in range(9):
            team(node).state.set(f"k{number}", large if number == 4 else number)
        raws = [entry.raw for entry in node.log.range(1, 10)]
    log = open_log(str(tmp_path / "home"))
    found = pa.Table.from_batches(log.batches(1, 1, 10))
    assert found["raw"].to_pylist() == raws
    assert found["offset"].to_pylist() == list(range(1, 10))


@pytest.mark.parametrize("bytes_max", [1 << 20, 2000])
@pytest.mark.parametrize("missing", [2, 4, 5])
def test_P1_a_hole_in_a_log_is_an_error_and_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, bytes_max: int
) -> None:
    monkeypatch.setattr("holdfast.pipeline.logs.disk.SOURCE_BATCH_BYTES", bytes_max)
    with make_home(tmp_path / "home") as node:
        for _ in range(6):
            team(node).state.set("k", "x" * 1500)
    with closing(connect(HomePaths(tmp_path / "home").database)) as connection:
        connection.execute("DELETE FROM log WHERE offset = ?", (missing,))
    log = open_log(str(tmp_path / "home"))
    given: list[int] = []

    def read(start: int) -> None:
        for batch in log.batches(1, start, 7):
            given.extend(batch.column("offset").to_pylist())

    with pytest.raises(StoreCorrupt, match="gap"):
        read(2 if missing == 2 else 1)
    assert max(given, default=0) < missing
