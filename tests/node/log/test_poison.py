"""Entries that earlier versions took from others and would be refused today: no reader stops there,
and none of them ends a line or forges a field.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.apps.cli import documents
from holdfast.node.core.intake import Intake
from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_, import_log
from holdfast.node.library.node import Node
from holdfast.protocol.log_json import entry_json
from holdfast.rules import bodies, envelope
from holdfast.rules.bodies import Fact, StateSet, TaskCreate
from holdfast.rules.filters import EVERYTHING
from holdfast.service.http.ranges import Lines
from support import envelopes as e
from support.nodes import Nodes, store_of, team
from support.source import HandClock

FORGED = b'1,"origin":"ana"}\n{"offset":1,"id":"x","mesh":"team","op":"x","origin":"ana","meta":1'


@contextmanager
def as_before() -> Iterator[None]:
    """An intake that looks at no form, as that of version 0.1.0."""

    def anything(*given: object, **more: object) -> None:
        return

    with pytest.MonkeyPatch.context() as patch:
        for name in ("check_meta", "check_packed_form", "_check_op"):
            patch.setattr(envelope, name, anything)
        patch.setattr(bodies, "_check_form", anything)
        patch.setattr("holdfast.rules.arrivals.read_fact", anything)
        yield


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes("sqlite", tmp_path, HandClock())
    yield made
    made.close()


@pytest.fixture
def poisoned(nodes: Nodes) -> Node:
    node = nodes.open("ana")
    with as_before():
        results = node.apply(
            [
                e.state_set("plain", 1, lamport=1),
                e.state_set("k", 1, lamport=2, meta=b"\xff"),
                e.state_set("j", 1, lamport=3, meta=FORGED),
                e.raw("state.set", "breaks", StateSet(b'{"a":\n1,\r\n"b":2}'), lamport=4),
                e.raw("fact.append", "s", Fact("is", b"[1,\n2]"), lamport=5, meta=b"\xfe\n"),
                e.raw("memory.set", "m", bodies.MemorySet(b"\n7"), lamport=6),
                e.raw("task.create", "no id", TaskCreate("a task"), lamport=7),
                e.fact_append("after", "is", "all of them", lamport=8),
            ]
        )
    assert [result.error for result in results] == [None] * 8
    return node


def test_D13_fetch_and_tail_pass_by_a_poisoned_entry(poisoned: Node) -> None:
    poisoned.log.add_consumer("reader")
    entries = list(poisoned.log.fetch("reader", 100))
    shown = [documents.entry(entry) for entry in entries]
    assert [one["offset"] for one in shown] == list(range(1, 9))
    assert shown[1]["meta"] == {"unreadable": "/w=="}
    told = [json.loads(json.dumps(one)) for one in shown]
    assert told[-1]["entity"] == "after"
    poisoned.log.confirm("reader", 8)
    assert list(poisoned.log.fetch("reader", 100)) == []


def test_D13_no_content_ends_a_line_of_a_range_or_forges_a_field(poisoned: Node) -> None:
    with store_of(poisoned).read() as tx:
        columns = tx.log_columns(1, 9, 100, 10**7, EVERYTHING)
    lines = Lines().batch(columns).split(b"\n")
    assert lines.pop() == b""
    read = [json.loads(line, object_pairs_hook=distinct) for line in lines]
    assert [one["offset"] for one in read] == list(range(1, 9))
    assert {one["origin"] for one in read} == {"bob"}
    assert read[3]["body"]["value"] == {"a": 1, "b": 2}


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a field is told twice"
    return found


def test_D13_an_entry_that_cannot_be_read_is_shown_as_its_bytes() -> None:
    raw = e.state_set("k", 1)
    for damaged in (
        b"\x90",
        b"\xff" * 9,
        raw[:-3],
        raw.replace(b"holdfast", b"hold\xff\xff\xff\xff"),
    ):
        told = json.loads(msgspec.json.encode(entry_json(7, damaged, 5)))
        assert (told["offset"], told["recorded_at"]) == (7, 5)
        assert b64decode(told["raw"]) == damaged
        assert told["unreadable"]


@pytest.mark.parametrize("how", [import_, import_log])
def test_S13_one_foreign_value_makes_no_export_unimportable(
    poisoned: Node, nodes: Nodes, how: Callable[..., Any]
) -> None:
    out = io.BytesIO()
    export(poisoned, out)
    out.seek(0)
    for line in out.getvalue().splitlines():
        json.loads(line, object_pairs_hook=distinct)
    other = nodes.open("cyd")
    report = how(other, out)
    mesh = team(other)
    assert mesh.state.get("plain") == 1
    if how is import_:
        assert report.bad == ()
        assert mesh.state.get("breaks") == {"a": 1, "b": 2}
        assert [memory.value for memory in mesh.memory.recall("m", scope="all")] == [7]
        assert [task.title for task in mesh.tasks.list()] == ["a task"]
        assert report.counts["fact"] == 2
    else:
        assert report.counts == {"applied": 2, "refused": 6}
        assert {one.code for one in report.refused} == {"bad_value", "bad_envelope"}


def test_D13_a_message_of_before_is_read_in_the_inbox(nodes: Nodes) -> None:
    node = nodes.open("ana")
    raw = e.message_send("topic", "news", b"hello", lamport=1, meta=b"\xff")
    with as_before():
        store_of(node).write(Intake(node._engine.ctx, [raw], delivered={raw: b"B" * 16}))
    (waiting,) = team(node).inbox.list(unread=True)
    assert team(node).inbox.read(waiting.id).meta == {"unreadable": "/w=="}
    assert list(team(node).inbox.list(unread=True)) == []
