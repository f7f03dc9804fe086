"""Bugs of the peer bus to plant, for `faults.planted`: mistakes of stores, links and senders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from holdfast.bus.lane import Outgoing
from holdfast.bus.links import links
from holdfast.bus.numbers import Numbers
from holdfast.bus.parcel_intake import ParcelIntake
from holdfast.rules.bus.links.link_choice import InboundVerdict
from holdfast.rules.bus.message import MessageKind, encode_message
from holdfast.storage.sqlite.bus import mesh_store
from holdfast.storage.sqlite.store import SqliteStore, SqliteTransaction

Patch = Callable[[pytest.MonkeyPatch], None]


def _mark_before_row(patch: pytest.MonkeyPatch) -> None:
    """Mark and id of a message are committed before its row in the inbox."""
    add = SqliteTransaction.bus_inbox_add

    def apart(tx: SqliteTransaction, rows: Sequence[Any]) -> None:
        tx.connection.execute("COMMIT")
        tx.connection.execute("BEGIN IMMEDIATE")
        add(tx, rows)

    patch.setattr(SqliteTransaction, "bus_inbox_add", apart)


def _numbers_again_after_restore(patch: pytest.MonkeyPatch) -> None:
    """A store that went back gives the numbers again that the mark beside it knows of."""
    patch.setattr(mesh_store, "read_bus_mark", lambda path: None)
    patch.setattr(mesh_store, "why_doubt", lambda found, mark: None)


def _acknowledged_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A peer acknowledges what it is about to store."""
    take = ParcelIntake._take

    async def hasty(intake: ParcelIntake, group: Sequence[Any]) -> None:
        last = group[-1].parcel
        intake._acknowledge(last.head(last.count - 1).sequence, [])
        await take(intake, group)

    patch.setattr(ParcelIntake, "_take", hasty)


def _commit_not_synced(patch: pytest.MonkeyPatch) -> None:
    """The store answers before the disk has it."""
    init = SqliteStore.__init__

    def hasty(store: SqliteStore, *args: Any, **kwargs: Any) -> None:
        init(store, *args, **{**kwargs, "sync": "normal"})

    patch.setattr(SqliteStore, "__init__", hasty)


def _both_dials_refused(patch: pytest.MonkeyPatch) -> None:
    """Whoever dials refuses the other's dial, and so do both."""
    patch.setattr(links, "inbound_verdict", lambda *keys, **given: InboundVerdict.REFUSE)


def _resent_with_a_new_id(patch: pytest.MonkeyPatch) -> None:
    """What is sent again is a new message."""
    _change_again(patch, MessageKind.SEND)


def _asked_again_with_a_new_id(patch: pytest.MonkeyPatch) -> None:
    """What is asked again is a new request."""
    _change_again(patch, MessageKind.REQUEST)


def _change_again(patch: pytest.MonkeyPatch, kind: MessageKind) -> None:
    payload = Outgoing.payload

    def renewed(outgoing: Outgoing, now_ms: int) -> bytes:
        message = outgoing.message
        if not outgoing.attempts or message.kind is not kind:
            return payload(outgoing, now_ms)
        id = message.id[:-1] + bytes((message.id[-1] ^ 1,))
        return encode_message(msgspec.structs.replace(message, id=id))

    patch.setattr(Outgoing, "payload", renewed)


def _leap_not_taken(patch: pytest.MonkeyPatch) -> None:
    """A sender does not care which numbers its peer has seen."""

    async def stay(numbers: Numbers, seen: int) -> None:
        return None

    patch.setattr(Numbers, "leap", stay)


PLANTS: dict[str, Patch] = {
    "mark before row": _mark_before_row,
    "numbers again after restore": _numbers_again_after_restore,
    "acknowledged before commit": _acknowledged_before_commit,
    "commit not synced": _commit_not_synced,
    "both dials refused": _both_dials_refused,
    "resent with a new id": _resent_with_a_new_id,
    "asked again with a new id": _asked_again_with_a_new_id,
    "leap not taken": _leap_not_taken,
}
