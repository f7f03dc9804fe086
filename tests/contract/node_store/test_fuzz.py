"""Bytes from anywhere: read, or refused by an error of ours; and a refusal leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.node.library.node import Node
from holdfast.rules.bodies import OPS, decode_body
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import Refused
from holdfast.rules.reconcile import Outcome
from support.dump import dump
from support.envelopes import MODEL
from support.golden import golden, golden_bytes
from support.nodes import Nodes, store_of
from support.seeds import seeds
from support.source import HandClock

NAMES = sorted(golden())
NODE = Nodes("memory", Path(), HandClock()).open("watcher")
"""One node for all: refused bytes leave it as it was, which is what is being tried."""


def judge(raw: bytes) -> Envelope | None:
    """The envelope if it may enter; None if it was refused. Anything else is a finding."""
    found: Refused | None = None
    try:
        envelope = decode(raw)
        decode_body(envelope)
    except Refused as error:
        found = error
    if found is None:
        return envelope
    assert found.message
    assert found.code != Refused.code, "a leaf"
    return None


def offer(node: Node, raws: list[bytes]) -> int:
    """Hands bytes to a node and returns how many it took. The refused ones must change nothing."""
    refused = [raw for raw in raws if judge(raw) is None]
    with store_of(node).read() as tx:
        before = dump(tx)
    results = node.apply(refused)
    assert all(isinstance(result.error, Refused) for result in results)
    with store_of(node).read() as tx:
        assert dump(tx) == before
    return len(raws) - len(refused)


@pytest.mark.parametrize("name", NAMES)
def test_R4_a_change_of_one_byte_leaves_no_trace_where_it_is_refused(name: str) -> None:
    """And changes nothing where it is refused: at each position the values that mean most to
    msgpack, and a few by chance.
    """
    raw = golden_bytes(name)
    rng = random.Random(name)
    special = bytes.fromhex("00 7f 80 90 9f a0 bf c0 c1 c4 c6 cb cf d3 d9 db dd df e0 ff")
    changed = []
    for at, old in enumerate(raw):
        values = {*special, old ^ 1, old ^ 0x80, *rng.sample(range(256), 6)} - {old}
        changed += [raw[:at] + bytes([value]) + raw[at + 1 :] for value in sorted(values)]
    offer(NODE, changed)


@pytest.mark.parametrize("name", NAMES)
def test_R4_every_value_of_every_byte_is_read_or_refused(name: str) -> None:
    raw = golden_bytes(name)
    for at, old in enumerate(raw):
        for value in range(256):
            if value != old:
                judge(raw[:at] + bytes([value]) + raw[at + 1 :])


@pytest.mark.parametrize("name", NAMES)
def test_R4_every_piece_and_every_overhang_is_refused(name: str) -> None:
    raw = golden_bytes(name)
    pieces = [raw[:at] for at in range(len(raw))] + [raw[at:] for at in range(1, len(raw))]
    longer = [raw + bytes([extra]) for extra in (0, 0x90, 0xC0, 0xFF)] + [raw + raw]
    assert offer(NODE, pieces + longer) == 0


@pytest.mark.parametrize("name", NAMES)
def test_R4_a_byte_more_or_a_byte_less_is_read_or_refused(name: str) -> None:
    raw = golden_bytes(name)
    less = [raw[:at] + raw[at + 1 :] for at in range(len(raw))]
    more = [raw[:at] + b"\x91" + raw[at:] for at in range(len(raw))]
    offer(NODE, less + more)


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_R4_any_bytes_are_read_or_refused(raw: bytes) -> None:
    judge(raw)


_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=34)
    | st.sampled_from(["holdfast", "1.0", "team", "state.set", "task.claim", "queued", "committed"])
)
_anything = st.recursive(
    _leaf,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.sampled_from(NAMES), st.integers(0, 24), _anything)
@settings(max_examples=500)
def test_R4_any_field_may_hold_anything(name: str, at: int, value: object) -> None:
    fields = msgspec.msgpack.decode(golden_bytes(name))
    fields[at : at + 1] = [value]
    judge(msgspec.msgpack.encode(fields))


@given(st.sampled_from(sorted(OPS)), st.lists(_anything, max_size=9), st.sampled_from(["", "bob"]))
@settings(max_examples=500)
def test_R4_any_body_may_hold_anything(op: str, fields: list[object], owner: str) -> None:
    whole = msgspec.msgpack.decode(golden_bytes("state_set"))
    names = list(golden()["state_set"]["envelope"])
    whole[names.index("op")] = op
    whole[names.index("owner")] = owner
    whole[names.index("body")] = msgspec.msgpack.encode(fields)
    judge(msgspec.msgpack.encode(whole))


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_R4_a_node_survives_whatever_passes_the_checks(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """Mutations that are still envelopes go all the way in; then the node must be whole."""
    rng = random.Random(f"fuzz {seed}")
    nodes = Nodes(kind, tmp_path, HandClock())
    node = nodes.open("ana")
    taken = 0
    for _ in range(40):
        batch = []
        for _ in range(40):
            raw = bytearray(golden_bytes(rng.choice(NAMES)))
            for _ in range(rng.randint(1, 2)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            batch.append(bytes(raw))
        known = (None, Outcome.NOOP_ALREADY_APPLIED)
        taken += sum(result.outcome not in known for result in node.apply(batch))
    assert taken > 30, "enough of them got in to prove something"
    from holdfast.node.log.history import replay
    from support.snapshot import differences, snapshot

    folded = replay(node.log.range(), node.meshes(), node.peer)
    assert differences(snapshot(store_of(node)), snapshot(folded)) == []
    assert node.mesh("team").state.set("still", "alive").offset == taken + 1
    if kind == "sqlite":
        from holdfast.storage.sqlite.integrity import integrity

        node.close()
        assert integrity(node.home / "data.db", ours=True) == []
    nodes.close()


NAMES_FROM_A_COMMAND_LINE = [
    "\udcff",
    "a\ud800b",
    "a\0b",
    "",
    "'; --",
    "%",
    "x" * 5000,
    "\U0010ffff",
]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("text", NAMES_FROM_A_COMMAND_LINE, ids=ascii)
def test_R4_any_text_is_looked_for_or_refused(kind: str, text: str, tmp_path: Path) -> None:
    nodes = Nodes(kind, tmp_path, HandClock())
    node = nodes.open("ana")
    mesh = node.mesh("team")
    calls: list[Callable[[], object]] = [
        lambda: list(mesh.state.list(text)),
        lambda: mesh.state.get(text),
        lambda: mesh.state.as_of(text, offset=1),
        lambda: mesh.memory.recall("k", scope=text),
        lambda: mesh.memory.recall(text, scope="all"),
        lambda: mesh.memory.get("k", peer=text),
        lambda: list(mesh.memory.list(scope=f"peer:{text}")),
        lambda: mesh.files.read("k", peer=text),
        lambda: mesh.files.last_known("k", peer=text),
        lambda: list(mesh.files.list(peer=text)),
        lambda: mesh.tasks.get(text),
        lambda: mesh.tasks.events(text),
        lambda: mesh.tasks.claim(text),
        lambda: list(mesh.tasks.list(status=text)),
        lambda: node.log.fetch(text),
        lambda: node.log.confirm(text, 1),
        lambda: node.log.retire(text),
        lambda: node.log.add_consumer("reader", start=text),
        lambda: node.take_warnings(text),
        lambda: list(node.conflicts(text)),
        lambda: node.mesh(text),
        lambda: node.open_blob(text),
    ]
    for call in calls:
        with suppress(Refused):
            call()
    assert node.log.head().offset == 0
    nodes.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("number", [0, -1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**70)])
def test_R4_any_number_is_looked_for_or_refused(kind: str, number: int, tmp_path: Path) -> None:
    nodes = Nodes(kind, tmp_path, HandClock())
    node = nodes.open("ana")
    mesh = node.mesh("team")
    mesh.state.set("k", 1)
    node.log.add_consumer("reader")
    calls: list[Callable[[], object]] = [
        lambda: list(node.log.range(number)),
        lambda: list(node.log.range(1, number)),
        lambda: node.log.tail(number),
        lambda: node.log.fetch("reader", number),
        lambda: node.log.confirm("reader", number),
        lambda: node.log.confirm("reader", ranges=[(1, number)]),
        lambda: node.log.confirm("reader", ranges=[(number, number)]),
        lambda: node.log.add_consumer("late", start=number),
        lambda: node.conflict(number),
        lambda: node.restore_conflict(number),
        lambda: mesh.state.as_of(offset=number),
        lambda: mesh.state.as_of(lamport=number),
        lambda: mesh.state.as_of(at_ms=number),
        lambda: mesh.vectors.search([1, 2], model=MODEL, limit=number),
    ]
    for call in calls:
        with suppress(Refused):
            call()
    assert mesh.state.get("k") == 1
    nodes.close()
