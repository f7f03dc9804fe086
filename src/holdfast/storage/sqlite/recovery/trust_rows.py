"""What a repair saves of other nodes: whom we trust, whom we pull from, and with whom we share over
the bus.

None of it can be had from the log, and a row that was misread could trust a stranger. So each must
make sense by itself, and what does not is lost: a zone that is no longer trusted says so at its
next call, and a person trusts it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.bus.capability import read_capability
from holdfast.rules.bus.meshes.member_list import read_list
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import HoldfastError
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CHUNK_ROWS

Fields = dict[str, Any]

TABLES: Final = ("zone", "zone_key", "token", "link", "quarantine")
SINCE: Final = 6
"""The schema version that brought them."""
SHARED: Final = ("bus_mesh", "bus_invite", "bus_address")
SHARED_SINCE: Final = 12
RIGHTS: Final = ("bus_capability",)
RIGHTS_SINCE: Final = 14
_DIGEST_BYTES: Final = 32
_NUMBERED: Final = {"zone": "SELECT max(via) FROM log", "quarantine": "SELECT 0"}

_names = msgspec.json.Decoder(tuple[str, ...])
_filter = msgspec.json.Decoder(Filter)


def is_valid(fields: Fields) -> bool:
    """Whether a row can be what it says."""
    try:
        if "reads" in fields:
            _names.decode(fields["reads"])
        if "addresses" in fields:
            _names.decode(fields["addresses"])
        if "filter" in fields:
            _filter.decode(fields["filter"]).check()
        if "members" in fields:
            # The owner's signature tells a list that was harmed from one that was not.
            read_list(fields["members"], fields["mesh"], fields["owner"])
        if fields.get("capability"):
            read_capability(fields["capability"])
    except (msgspec.MsgspecError, ValueError, TypeError, HoldfastError):
        return False
    return all(_is_digest(fields[name]) for name in ("key", "digest") if name in fields)


def filter_or_all(text: Any) -> str:
    """A reader's filter; where it is lost it is given everything, until it says again what it asks
    for. Nothing is confirmed for it that it was not given.
    """
    try:
        _filter.decode(text).check()
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, HoldfastError):
        return "{}"
    return str(text)


def settle_rows(connection: apsw.Connection, *, lost: bool) -> None:
    """Keys have their zones, numbers are never given again, and what was lost is pulled again."""
    connection.execute("DELETE FROM zone_key WHERE zone NOT IN (SELECT name FROM zone)")
    connection.execute("DELETE FROM bus_invite WHERE mesh NOT IN (SELECT mesh FROM bus_mesh)")
    for table, elsewhere in _NUMBERED.items():
        connection.execute(
            "INSERT INTO meta (name, value) "
            f"SELECT ?1, max(coalesce((SELECT max(number) FROM {table}), 0), "
            f"coalesce(({elsewhere}), 0), "
            "coalesce((SELECT value FROM meta WHERE name = ?1 AND typeof(value) = 'integer'), 0)) "
            "WHERE true ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (table,),
        )
    if lost:
        # Some of what the cursors say is here is not. What is, is known by its id.
        connection.execute("UPDATE link SET epoch = 0, cursor = 0")


def objects_of_facts(connection: apsw.Connection) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Offset and objects of every fact in the log that names some."""
    after = 0
    while True:
        page: list[Any] = connection.execute(
            "SELECT offset, raw FROM log WHERE offset > ? AND op = 'fact.append' "
            "ORDER BY offset LIMIT ?",
            (after, CHUNK_ROWS),
        ).fetchall()
        for offset, raw in page:
            body = decode_trusted_body(decode_trusted(raw))
            if isinstance(body, Fact) and body.objects:
                yield offset, body.objects
        if not page:
            return
        after = page[-1][0]


def _is_digest(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == _DIGEST_BYTES
