"""A voter that lies in all that it may say, over a real link of its own key.

What it says is made by a packer of its own, which shares no code with ours: what only our own
encoder would never write is said, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.errors import PeerUnreachable
from support.voter_nodes import VoterNode, until, voted

Lie = tuple[str, list[object]]
Send = Callable[..., None]
FAR: Final = 1_000_000
HUGE: Final = 2**63
NOBODY: Final = 7777


def packed(value: object) -> bytes:
    """MessagePack, as little of it as the lies need, and with the longest heads there are."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value) if value < HUGE else struct.pack(">BQ", 0xCF, value)
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value)) + value.encode()
    assert isinstance(value, list | tuple)
    return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))


def lies(group: bytes, me: int, to: int, term: int, last: int) -> Iterator[Lie]:
    """Messages of a voter, each a list that begins with its number."""
    head = [group, me, to, term]
    yield "it has what nobody wrote", [4, *head, True, last + FAR, last + FAR, 1]
    yield "it answers a round that has not begun", [4, *head, True, last, last, FAR]
    yield "it agrees with nothing", [4, *head, False, 0, 0, 1, 0, 0]
    yield "its hint is beyond its end", [4, *head, False, 1, 0, 1, FAR, term]
    yield "it gives a vote that nobody wants", [2, *head, False, True]
    yield "it wants votes with nothing", [1, group, me, to, term + 1, False, 0, 0, False]
    yield "it wants votes with a log from nowhere", [1, *head, False, last + FAR, term + 9, True]
    yield "it leads this term, too", [5, *head, last + FAR, term, FAR, False]
    yield "it has other entries", [3, *head, 0, 0, last + FAR, FAR, [[term, "data", b"lie"]]]
    yield "it has entries behind a gap", [3, *head, last + FAR, term, 0, FAR, [[term, "data", b""]]]
    yield "it says: you are removed", [14, *head]
    yield "it says: elect yourself", [12, *head]
    yield "it confirms a read of nobody", [11, *head, 1, last + FAR, ""]
    yield "it speaks for another", [4, group, NOBODY, to, term, True, last, last, 1]
    yield "it speaks to another", [6, group, me, NOBODY, term, 1, last]
    yield "it offers a snapshot without parts", [7, *head, last + FAR, term, 0, [[], 1], 1]
    yield "it sends a part of no snapshot", [16, *head, 1, 0, b"half"]
    yield "it has a term that no incarnation has", [6, group, me, to, HUGE - 1, 1, last]
    yield "its numbers are negative", [4, *head, True, -1, -1, -1]
    yield "its fields are of other kinds", [4, *head, "yes", b"", None, []]
    yield "there are too few", [4, group]
    yield "nobody knows this kind", [99, *head]


@pytest.mark.parametrize("leads", [True, False])
def test_Q4_R4_a_voter_that_lies_in_every_answer_changes_no_write_of_the_others(
    tmp_path: Path, leads: bool
) -> None:
    """Told to the one that leads, and to the one that follows."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        await ana.host.operators.init("team", ["bo", "cy"])
        await ana.put("before")
        await until(lambda: bo.mission() is not None)
        victim = ana if leads else bo
        number = 0
        while True:
            state = victim.order.driver.state
            ids = {one.peer: one.id for one in state.log.config.members}
            told = list(lies(state.group, ids["cy"], ids[victim.name], state.term, state.log.last))
            if number == len(told):
                break
            what, lie = told[number]
            number += 1
            await until(partial(_linked, cy, victim))
            for stream in (Stream.CONTROL, Stream.QUORUM):
                _say(cy, victim, stream, packed([1, [packed(lie)]]))
            # Whoever leads by now: the others decide, and both have it.
            done = await ana.put(what, timeout_ms=40_000)
            assert done.outcome == "applied", what
            await until(partial(_have, (ana, bo), done.number))
            assert {ana.part, bo.part} <= {"coordinator", "voter"}, what
        _say(cy, victim, Stream.CONTROL, b"\xdd\xff\xff\xff\xff")
        assert (await ana.put("after")).outcome == "applied"
        assert ana.order.driver.fold_error is bo.order.driver.fold_error is None

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q4_B3_what_a_voter_said_before_a_restart_changes_nothing_when_it_is_said_again(
    tmp_path: Path,
) -> None:
    """All of it, votes and acknowledgements among it, to a node that has begun anew since."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        said: list[tuple[Stream, bytes]] = []

        def keep(real: Send) -> Send:
            def send(kind: FrameKind, stream: Stream, body: bytes, **more: bool) -> None:
                if kind is FrameKind.QUORUM:
                    said.append((stream, body))
                real(kind, stream, body, **more)

            return send

        await ana.host.operators.init("team", ["bo", "cy"])
        for other in (ana, bo):
            await until(partial(_linked, cy, other))
            link = cy.host.groups.links._ways[_key(other)].link
            link.send = keep(link.send)  # type: ignore[method-assign]
        for number in range(20):
            await ana.put(f"title {number}")
        await ana.host.operators.transfer("team", "cy")
        await ana.put("under another coordinator")
        before = max(node.order.driver.state.term for node in nodes)
        assert len(said) > 20
        for node in (ana, bo):
            await node.down()
            await node.up()
        assert (await ana.put("after the restart", timeout_ms=60_000)).outcome == "applied"
        for other in (ana, bo):
            await until(partial(_linked, cy, other))
            for stream, body in said:
                _say(cy, other, stream, body)
        assert (await bo.put("after the replay", timeout_ms=60_000)).outcome == "applied"
        await until(lambda: len(_numbers(nodes)) == 1)
        assert min(node.order.driver.state.term for node in nodes) >= before, "no term is lowered"
        assert {node.part for node in nodes} <= {"coordinator", "voter"}

    voted(tmp_path, story, "ana", "bo", "cy")


def _key(node: VoterNode) -> bytes:
    return node.host.bus.key


def _linked(one: VoterNode, other: VoterNode) -> bool:
    return one.host.groups.links.is_linked(_key(other))


def _say(liar: VoterNode, to: VoterNode, stream: Stream, body: bytes) -> None:
    way = liar.host.groups.links._ways[_key(to)]
    try:
        way.link.send(FrameKind.QUORUM, stream, body, at_once=True)
    except PeerUnreachable:
        return  # it was blamed for the one before


def _numbers(nodes: Sequence[VoterNode]) -> set[int]:
    """How many commits they have."""
    rows = [node.node._engine.read("row", lambda tx: tx.quorum_get("team")) for node in nodes]
    return {0 if row is None else row.number for row in rows}


def _have(nodes: Sequence[VoterNode], number: int | None) -> bool:
    return _numbers(nodes) == {number}
