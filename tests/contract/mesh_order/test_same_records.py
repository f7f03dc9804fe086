"""Both engines make the same of the same intents: rows and records differ in their fences and
times, and in nothing else.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from holdfast.rules.envelope import Envelope
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.commit_record import CommitRecord
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import IntentAbandon
from holdfast.rules.quorum.view import EntityRow
from support.daemon import make_home
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.etcd_server import etcd_server
from support.order_worlds import EtcdSeat, OrderSeat, VoterSeat, bounded, decoded, propose
from support.quorum_state import change, intent, operation
from support.voter_nodes import VoterNode, mission, voted

NO_FENCE = FenceToken(1, 0, "nobody", 0)


def intents() -> list[Envelope]:
    """Applied, superseded, in conflict, refused, given up, and one that comes twice."""
    first = mission("ana", "one", "m1")
    late = mission("ana", "late", "m2")
    return [
        first,
        mission("bo", "two", "m1"),
        change(operation("put", "mission", "m1", {"title": "blind"}, base=1), origin="bo"),
        change(operation("put", "milestone", "o1", {"title": "x", "missionId": "none"})),
        change(operation("put", "milestone", "s1", {"title": "x", "missionId": "m1"})),
        change(operation("delete", "mission", "m1", base=2), origin="ana"),
        intent("intent.abandon", id_text(late.id), IntentAbandon(late.id), origin="bo"),
        late,
        first,
    ]


async def outcomes(seat: OrderSeat, proposed: list[Envelope]) -> list[object]:
    found = [await propose(seat, envelope) for envelope in proposed]
    return [(one.raw_id, one.outcome, one.reason, one.number, one.revisions) for one in found]


def bare_records(seat: OrderSeat) -> list[CommitRecord]:
    return [
        msgspec.structs.replace(record, fence=NO_FENCE, committed_at=0) for record in decoded(seat)
    ]


def bare_entities(seat: OrderSeat) -> list[EntityRow | None]:
    def read(type: str, id: str) -> EntityRow | None:
        row = seat.engine.read("entity", lambda tx: tx.entity_get(MESH, type, id))
        return None if row is None else msgspec.structs.replace(row, fence=NO_FENCE, committed_at=0)

    return [read("mission", "m1"), read("mission", "m2"), read("milestone", "s1")]


def test_Q3_the_same_intents_come_to_the_same_on_both_engines(tmp_path: Path) -> None:
    proposed = intents()
    told: list[tuple[list[object], list[CommitRecord], list[EntityRow | None]]] = []

    async def tell(seat: OrderSeat) -> None:
        said = await outcomes(seat, proposed)
        told.append((said, bare_records(seat), bare_entities(seat)))

    async def voting(nodes: list[VoterNode]) -> None:
        await nodes[0].host.operators.init(MESH, [])
        await tell(VoterSeat(nodes[0]))

    async def in_etcd() -> None:
        home = make_home(tmp_path / "etcd", "ana", MESH)
        seat = EtcdSeat(home, "ana", etcd_server().ports[0])
        await seat.up()
        await seat.operators.init(MESH, seat.address(new_scope()))
        await tell(seat)
        await seat.close()

    voted(tmp_path / "voting", voting, "ana")
    asyncio.run(bounded(in_etcd()))
    embedded, etcd = told
    assert embedded == etcd
    assert len({str(said) for said in embedded[0]}) == len(proposed), "each one shows something"
    assert len(embedded[1]) == len(proposed) - 2, "two of them are no part of the order"
