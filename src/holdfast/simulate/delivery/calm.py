"""The end of a story of delivery: when all is calm, everything must be where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.rules.errors import IdempotencyKeyReused, UnknownDestination
from holdfast.rules.ids import id_text
from holdfast.rules.outbox import EXPIRED, FAILS_ALONE
from holdfast.rules.rows import Entry, OutboxRow
from holdfast.simulate.delivery.books import ALL
from holdfast.simulate.delivery.broker_machine import POISON
from holdfast.simulate.delivery.time import is_old
from holdfast.simulate.delivery.workload import NOWHERE, SEND
from holdfast.simulate.nodes.nodes import running
from holdfast.simulate.world.invariants import differences, missing_content
from holdfast.storage.ports import Reader

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

REASONS: Final = frozenset(
    {UnknownDestination.code, IdempotencyKeyReused.code, EXPIRED, FAILS_ALONE}
)
"""Why a message of an honest node may not be delivered."""


def left(world: DeliveryWorld, peer: str) -> list[str]:
    """What has still to go from a node to the broker or back."""

    def look(tx: Reader) -> list[str]:
        problems = []
        for mesh, book in world.books.meshes.items():
            row = tx.mesh_get(mesh)
            if row is None:
                problems.append(f"{peer} has not joined {mesh}")
                continue
            here, there = (row.broker_epoch, row.broker_seq), (book.epoch, book.seq)
            if here != there:
                problems.append(f"{peer} is at {here} of {mesh}, the broker at {there}")
            waits = tx.outbox_list(f"broker:{mesh}", ("pending", "inflight"), 0, ALL)
            problems += [
                f"{peer} still has {_told(row)}" for row in waits if not _is_poison(row, tx)
            ]
        return problems

    return running(world.machines[peer])._engine.read("left", look)


def compare(world: DeliveryWorld) -> None:
    world.look_into_broker()
    world.expect(world.books.undelivered())
    for peer in world.machines:
        world.expect(world.books.unseen(peer, world.chronicles[peer]))
        world.expect(_unsent(world, peer))
    first, *others = world.machines.values()
    for mesh in world.books.meshes:
        expected = world.rows_of(first, mesh)
        for machine in others:
            for line in differences(expected, world.rows_of(machine, mesh)):
                world.break_off(f"{first.peer} and {machine.peer} end up apart: {line}")
    if not world.traits.broker_goes_back and not world.traits.nodes_go_back:
        for machine in world.machines.values():
            missing = missing_content(running(machine))
            if missing:
                world.break_off(f"{machine.peer} never got the content of {missing}")


def _unsent(world: DeliveryWorld, peer: str) -> list[str]:
    """What it wrote and still has is at the broker, or its outbox says why not."""

    def look(tx: Reader) -> list[str]:
        problems = []
        ended: dict[bytes, OutboxRow] = {}
        for mesh in world.books.meshes:
            rows = tx.outbox_list(f"broker:{mesh}", ("dead", "aborted"), 0, ALL)
            ended |= {row.id: row for row in rows}
        problems += [
            f"{peer} gave up {_told(row)}"
            for row in ended.values()
            if row.state == "dead" and (row.code not in REASONS or row.entity)
        ]
        problems += [
            f"{peer} gave up {_told(row)}, at which the broker does not fail"
            for row in ended.values()
            if row.code == FAILS_ALONE and not _is_poison(row, tx, POISON, NOWHERE)
        ]
        for entry in tx.log_range(1, ALL, ALL):
            book = world.books.meshes[entry.mesh]
            mine = entry.origin == peer or world.traits.relay
            if entry.id in book.seqs or entry.id in ended or not mine or _poisons(entry):
                continue
            if not world.publication.brought(peer, entry) and not is_old(world, entry):
                problems.append(
                    f"{peer} has {entry.op} {id_text(entry.id)} of {entry.origin}, and the "
                    "broker has not"
                )
        return problems

    return running(world.machines[peer])._engine.read("unsent", look)


def _is_poison(row: OutboxRow, tx: Reader, *words: str) -> bool:
    """Whether the broker fails at it; or refuses it, which costs attempts as well. It may wait for
    ever if nothing else is sent.
    """
    entry = tx.log_get(row.offset)
    return entry is not None and _poisons(entry, *words)


def _poisons(entry: Entry, *words: str) -> bool:
    return entry.op == SEND and any(word.encode() in entry.raw for word in words or (POISON,))


def _told(row: OutboxRow) -> str:
    return f"{row.state} {row.entity or 'message'} {id_text(row.id)} ({row.code}: {row.error})"
