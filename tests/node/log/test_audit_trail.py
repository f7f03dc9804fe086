"""Audit streams on a node: appended, taken in any order, verified, and forks refused."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.node.core.receive import receive_arrivals
from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_
from holdfast.node.library.node import Node
from holdfast.node.snapshots.mesh_export import tables_of
from holdfast.node.upkeep.sweep import Ttl, sweep
from holdfast.rules.arrivals import read_arrivals
from holdfast.rules.errors import AuditForked, BadInput, IdReused, OverLimit
from holdfast.rules.limits import AUDIT_EVENT_BYTES_MAX, AUDIT_GAPS_SHOWN_MAX
from holdfast.storage.sqlite.connection import connect
from support.nodes import KINDS, Nodes, team
from support.source import HandClock

STREAM = "activityLog"
GONE = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0)


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(request.param, tmp_path, HandClock())
    yield made
    made.close()


def raws(node: Node) -> list[bytes]:
    return [entry.raw for entry in node.log.range()]


def take(node: Node, *envelopes: bytes) -> list[str | None]:
    """As a link brings them: what is refused goes to the quarantine."""
    engine = node._engine
    arrivals = read_arrivals(envelopes)
    piece = engine.write(
        "intake",
        lambda tx: receive_arrivals(
            engine, tx, arrivals, lane="link", epoch=1, offsets=range(1, len(arrivals) + 1)
        ),
    )
    return [None if one.error is None else one.error.code for one in piece.applied]


def seqs(node: Node, stream: str = STREAM) -> list[tuple[str, int]]:
    return [(event.origin, event.seq) for event in team(node).audit.list(stream)]


def test_Q14_events_are_chained_for_each_stream_and_listed(nodes: Nodes) -> None:
    audit = team(nodes.open("ana")).audit
    first = audit.append(STREAM, {"did": "deploy"})
    audit.append("runAuditEvents", [1])
    again = audit.append(STREAM, {"did": "deploy"}, id=first.id)
    assert again.duplicate
    with pytest.raises(IdReused):
        audit.append(STREAM, {"did": "other"}, id=first.id)
    audit.append(STREAM, None)
    one, two = audit.list(STREAM)
    assert (one.seq, two.seq, two.previous) == (1, 2, one.hash)
    assert (one.payload, two.payload, one.id) == ({"did": "deploy"}, None, first.id)
    assert [(row.stream, row.last) for row in audit.streams()] == [
        (STREAM, 2),
        ("runAuditEvents", 1),
    ]
    assert all(one.sound and one.gapless for one in audit.verify())
    assert [one.seq for one in audit.list(STREAM, after="1.1.ana")] == [2]
    assert list(audit.list(STREAM, origin="bob")) == []
    with pytest.raises(OverLimit):
        audit.append(STREAM, "x" * AUDIT_EVENT_BYTES_MAX)
    with pytest.raises(BadInput):
        list(audit.list(STREAM, after="what"))


def test_Q14_any_order_of_arrival_gives_the_same_chains_and_a_gap_shows_meanwhile(
    nodes: Nodes,
) -> None:
    ana, bob, cyd = nodes.open("ana"), nodes.open("bob"), nodes.open("cyd")
    for number in range(6):
        team(ana).audit.append(STREAM, number)
        team(bob).audit.append(STREAM, number)
    sent = raws(ana) + raws(bob)
    random.Random(7).shuffle(sent)
    late = raws(ana)[2]
    sent.remove(late)
    assert take(cyd, *sent) == [None] * 11
    (gap,) = [one for one in team(cyd).audit.verify(STREAM) if one.origin == "ana"]
    assert (gap.missing, gap.gapless, gap.sound) == (((3, 3),), False, True)
    assert take(cyd, late, *sent) == [None] * 12
    assert seqs(cyd) == [(peer, seq) for peer in ("ana", "bob") for seq in range(1, 7)]
    assert all(one.sound and one.gapless for one in team(cyd).audit.verify())
    # What cyd hands on is what ana has.
    assert take(ana, *raws(cyd)) == [None] * 12
    assert list(team(ana).audit.list(STREAM)) == list(team(cyd).audit.list(STREAM))


def test_Q14_a_fork_is_refused_kept_as_evidence_and_shown(nodes: Nodes) -> None:
    ana, cyd = nodes.open("ana"), nodes.open("cyd")
    twin = Nodes("memory", nodes.folder, nodes.clock).open("ana")
    for number in range(3):
        team(ana).audit.append(STREAM, number)
    team(twin).audit.append(STREAM, "another past")
    team(twin).audit.append(STREAM, "and on")
    assert take(cyd, *raws(ana)) == [None] * 3
    assert take(cyd, *raws(twin)) == ["audit_forked"] * 2
    assert seqs(cyd) == [("ana", 1), ("ana", 2), ("ana", 3)]
    (verdict,) = team(cyd).audit.verify()
    first, second = verdict.forks
    ours, theirs = list(team(ana).audit.list(STREAM)), list(team(twin).audit.list(STREAM))
    assert (first.seq, second.seq, first.by) == (1, 2, "link")
    assert ours[0].hash in first.evidence
    assert theirs[0].hash in first.evidence
    assert not verdict.sound
    assert verdict.gapless
    # By the library the caller is told.
    (refused,) = cyd.apply(raws(twin)[:1])
    assert isinstance(refused.error, AuditForked)


def test_Q14_events_outlive_the_log_and_reach_a_newcomer_as_they_were(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    for number in range(5):
        team(ana).audit.append(STREAM, number)
    team(ana).state.set("k", 1)
    nodes.clock.advance(1000)
    assert sweep(ana._engine, GONE).log_entries >= 5
    assert len(list(team(ana).audit.list(STREAM))) == 5
    rebuilt = ana._engine.read("test", lambda tx: list(tables_of(tx, "team")))
    assert take(bob, *rebuilt) == [None] * len(rebuilt)
    assert list(team(bob).audit.list(STREAM)) == list(team(ana).audit.list(STREAM))
    team(ana).audit.append(STREAM, "more")
    assert take(bob, ana.log.tail(1)[-1].raw) == [None]
    # What comes again after its id was forgotten changes nothing.
    assert take(ana, *rebuilt) == [None] * len(rebuilt)
    assert [seq for _, seq in seqs(ana)] == [1, 2, 3, 4, 5, 6]
    assert team(bob).audit.verify()[0].sound


def test_Q14_an_export_carries_chains_and_an_import_keeps_them(tmp_path: Path) -> None:
    nodes = Nodes("sqlite", tmp_path, HandClock())
    ana, bob = nodes.open("ana"), nodes.open("bob")
    for number in range(4):
        team(ana).audit.append(STREAM, {"n": number})
    out = io.BytesIO()
    export(ana, out)
    for _ in range(2):
        out.seek(0)
        report = import_(bob, out)
        assert not report.bad
    assert list(team(bob).audit.list(STREAM)) == list(team(ana).audit.list(STREAM))
    out.seek(0)
    assert import_(bob, out, mesh_map={"team": "renamed"}).counts["not_theirs"] == 4
    nodes.close()


def test_Q14_a_changed_row_is_found_by_verify(tmp_path: Path) -> None:
    nodes = Nodes("sqlite", tmp_path, HandClock())
    ana = nodes.open("ana")
    for number in range(3):
        team(ana).audit.append(STREAM, number)
    with closing(connect(ana.home / "data.db")) as raw:
        raw.execute("UPDATE audit SET payload = '7' WHERE seq = 2")
    (verdict,) = team(ana).audit.verify()
    assert "event 2" in verdict.broken
    nodes.close()


def test_Q14_a_verification_names_so_many_gaps_and_no_more(nodes: Nodes) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    for number in range(2 * AUDIT_GAPS_SHOWN_MAX + 6):
        team(ana).audit.append(STREAM, number)
    take(bob, *raws(ana)[1::2])
    (verdict,) = team(bob).audit.verify()
    assert len(verdict.missing) == AUDIT_GAPS_SHOWN_MAX
    assert verdict.missing[:2] == ((1, 1), (3, 3))
