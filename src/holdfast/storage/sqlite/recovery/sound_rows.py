"""Whether a row of a damaged table can be what it says.

The tables of a new database refuse what has the wrong type. What has the right type may still be
nonsense: a number that no clock reaches, a name that no peer can have, JSON that is cut. What one
name of a column means is the same in all tables, so there is one rule per name.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import msgspec

from holdfast.rules.bodies import OPS
from holdfast.rules.bus.message import BusMessage
from holdfast.rules.bus.signed_envelope import NONCE_BYTES
from holdfast.rules.errors import HoldfastError
from holdfast.rules.filters import Filter
from holdfast.rules.limits import BUS_WINDOW, LAMPORT_MAX, RESTORE_LAMPORT_SKIP
from holdfast.rules.names import check_mesh, check_peer
from holdfast.rules.quorum.commit_record import decode_stored_record

Fields = dict[str, Any]

_STAMP_MAX: Final = LAMPORT_MAX - 1024 * RESTORE_LAMPORT_SKIP
"""A clock that stands higher could not count on after a repair."""
_TURNS: Final = frozenset(op.removeprefix("task.") for op in OPS if op.startswith("task."))
_HEX: Final = frozenset("0123456789abcdef")
_json = msgspec.json.Decoder()
_document = msgspec.json.Decoder(dict[str, Any])
_names = msgspec.json.Decoder(tuple[str, ...])
_filter = msgspec.json.Decoder(Filter)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < _STAMP_MAX


def _id(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 16


def _digest(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 32


def _sha(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and _HEX.issuperset(value)


def _flag(value: Any) -> bool:
    return value in (0, 1)


def _by(read: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """A rule from a function that raises for what is wrong."""

    def fits(value: Any) -> bool:
        try:
            read(value)
        except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError, HoldfastError):
            return False
        return True

    return fits


def _text_by(check: Callable[[str], Any]) -> Callable[[Any], bool]:
    fits = _by(check)
    return lambda value: isinstance(value, str) and fits(value)


_peer, _mesh = _text_by(check_peer), _text_by(check_mesh)
_head = _by(msgspec.msgpack.Decoder(BusMessage).decode)
_BY_NAME: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("mesh", "slug"), _mesh),
    **dict.fromkeys(("peer", "holder_peer", "ended_peer", "against_peer"), _peer),
    **dict.fromkeys(("winner_peer", "loser_peer"), _peer),
    **dict.fromkeys(("lamport", "holder_lamport", "ended_lamport", "against_lamport"), _count),
    **dict.fromkeys(("winner_lamport", "loser_lamport", "last_lamport"), _count),
    **dict.fromkeys(("offset", "released_offset", "number", "generation", "size"), _count),
    **dict.fromkeys(("epoch", "seq", "broker_epoch", "broker_seq", "not_before"), _count),
    **dict.fromkeys(("attempts", "row", "dim", "retire_ms", "retire_lag"), _count),
    **dict.fromkeys(("holder_id", "ended_id", "against_id", "winner_id", "loser_id"), _id),
    **dict.fromkeys(("broker_id", "replaces"), _id),
    **dict.fromkeys(("fingerprint", "digest"), _digest),
    **dict.fromkeys(("tombstone", "live", "known", "paused"), _flag),
    **dict.fromkeys(("value", "metadata"), _text_by(_json.decode)),
    **dict.fromkeys(("tags", "reads", "grants"), _text_by(_names.decode)),
    "sha256": _sha,
    "filter": _text_by(lambda text: _filter.decode(text).check()),
}
_OF_TABLE: Final[dict[str, dict[str, Callable[[Any], bool]]]] = {
    **{table: {"owner": _peer} for table in ("memory", "file", "vector")},
    "meta": {"value": lambda value: value is not None},
    "job": {"cursor": _text_by(_document.decode)},
    "link": {"cursor": _count},
    "vector_model": {"id": _is_text},
    "audit": {
        **{"origin": _peer, "at": _count, "payload": _text_by(_json.decode)},
        **{"previous": _digest, "hash": _digest},
    },
    "task_event": {"kind": lambda value: value in _TURNS},
    "zone_key": {"key": _digest},
    "mate": {"key": _digest},
    "spool": {"mesh": lambda value: value == "" or _mesh(value)},  # none: it goes to a peer
    "entity": {"id": _is_text, "fields": _text_by(_document.decode)},
    "entity_revision": {"id": _is_text},
    "quorum_commit": {"record": _by(decode_stored_record)},
    "bus_mark": {"peer": _digest, "seen": lambda value: len(value) == BUS_WINDOW // 8},
    "bus_nonces": {"nonces": lambda value: len(value) % NONCE_BYTES == 0},
    "bus_inbox": {"sender": _digest, "head": _head},
    "bus_message": {"head": _head},
    "bus_interest": {"patterns": _text_by(_names.decode)},
}


def is_sound(table: str, fields: Fields) -> bool:
    """Whether each column can be what its name says. NULL is left to the table itself."""
    own = _OF_TABLE.get(table, {})
    for name, value in fields.items():
        fits = own.get(name) or (_id if name == "id" else _BY_NAME.get(name))
        if fits is None and name.endswith("_at"):
            fits = _count
        if fits is not None and value is not None and not fits(value):
            return False
    if table == "file" and isinstance(fields.get("content"), bytes) and not fields["tombstone"]:
        return bool(sha256(fields["content"]).hexdigest() == fields["sha256"])
    return _versions_are_whole(fields)


def _versions_are_whole(fields: Fields) -> bool:
    """A version is there with all of its parts, or not at all."""
    for prefix in ("holder", "ended", "against"):
        parts = [fields.get(f"{prefix}_{part}") is None for part in ("lamport", "peer", "id")]
        if any(parts) and not all(parts):
            return False
    return True
