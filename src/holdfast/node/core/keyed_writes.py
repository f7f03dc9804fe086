"""The writes of one key, of the shared state or of this node's memory, as work for a transaction.

They stand apart from the other `operations`, which hand them on, because a command that writes one
key loads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.node.core.change import Change
from holdfast.node.core.runs.plain_changes import PlainChange
from holdfast.rules import names
from holdfast.rules.bodies import (
    MemorySet,
    Nothing,
    StateSet,
    check_tags,
    encode_body,
    encode_value,
    version_of_body,
)
from holdfast.rules.errors import BadInput, UnknownKey
from holdfast.rules.expected import Expect, check_expected, read_expect

if TYPE_CHECKING:
    from holdfast.node.core.context import NodeContext
    from holdfast.rules.bodies import FileShare
    from holdfast.rules.order import Stamp
    from holdfast.rules.rows import FileRow, MemoryRow, VersionedRow
    from holdfast.storage.ports import Reader

Meta = Mapping[str, Any] | None


class Required(PlainChange):
    """A change that is refused if what it needs is not so: something to delete, a stamp."""

    __slots__ = ("_require",)

    def __init__(self, require: Callable[[Reader], None], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._require = require

    def make_ready(self, tx: Reader) -> None:
        self._require(tx)


class Replacing(PlainChange):
    """A value that may take the place of another one of the same key, and keeps when that was first
    made. Each run looks anew. After a deletion it is made anew: deletions are forgotten at some
    time, and what follows must not depend on that.
    """

    __slots__ = ("_asked", "_created_at", "_find", "_require")

    def __init__(
        self,
        find: Callable[[Reader], MemoryRow | FileRow | None],
        ctx: NodeContext,
        mesh: str,
        op: str,
        entity: str,
        body: MemorySet | FileShare,
        *,
        id: str | None = None,
        created_at: int = 0,
        require: Callable[[Reader], None] | None = None,
    ) -> None:
        """`created_at`: of what is written where nothing is, if it was made elsewhere before."""
        super().__init__(ctx, mesh, op, entity, body, owner=ctx.peer, id=id)
        self._find, self._asked, self._require = find, body, require
        self._created_at = created_at

    def make_ready(self, tx: Reader) -> None:
        if self._require is not None:
            self._require(tx)
        self._follow(self._find(tx))

    def make_ready_on(self, tx: Reader, row: MemoryRow | None) -> None:
        if self._require is not None:
            self._require(tx)
        self._follow(row)

    def _follow(self, row: MemoryRow | FileRow | None) -> None:
        created_at = self._created_at
        if row is not None and not row.tombstone:
            created_at = row.created_at or row.updated_at
        self.body = replace(self._asked, created_at=created_at)
        self.encoded = encode_body(self.body)

    def envelope_version(self) -> str:
        return version_of_body(self.body)


def _live(row: VersionedRow | None) -> Stamp | None:
    """The stamp of a value that is there; None if there is none."""
    return None if row is None or row.tombstone else row.version.stamp


def _to_delete(expect: Expect) -> Stamp:
    expected = read_expect(expect)
    if expected is None:
        raise BadInput("what is absent cannot be deleted", hint="expect a stamp, or leave it out")
    return expected


# --- state ---------------------------------------------------------------------------------------


def state_set(
    ctx: NodeContext,
    mesh: str,
    key: str,
    value: object,
    id: str | None = None,
    meta: Meta = None,
    expect: Expect | None = None,
) -> Change:
    names.check_key(key)
    body = StateSet(encode_value(value))
    if expect is None:
        return PlainChange(ctx, mesh, "state.set", key, body, id=id, meta=meta)
    expected = read_expect(expect)

    def require(tx: Reader) -> None:
        check_expected(expected, _live(tx.state_get(mesh, key)), f"state {key!r} of {mesh!r}")

    return Required(require, ctx, mesh, "state.set", key, body, id=id, meta=meta)


def state_delete(
    ctx: NodeContext, mesh: str, key: str, id: str | None = None, expect: Expect | None = None
) -> Change:
    names.check_key(key)
    expected = None if expect is None else _to_delete(expect)

    def require(tx: Reader) -> None:
        present = _live(tx.state_get(mesh, key))
        if expected is not None:
            check_expected(expected, present, f"state {key!r} of {mesh!r}")
        elif present is None:
            raise UnknownKey(f"state of {mesh!r} has no key {key!r}")

    return Required(require, ctx, mesh, "state.delete", key, Nothing(), id=id)


# --- memory --------------------------------------------------------------------------------------


def memory_set(
    ctx: NodeContext,
    mesh: str,
    key: str,
    value: object,
    tags: Iterable[str] = (),
    id: str | None = None,
    expect: Expect | None = None,
    created_at: int = 0,
) -> Change:
    names.check_key(key)
    if not isinstance(tags, Iterable):
        raise BadInput(f"tags is {type(tags).__name__}, not a list of texts")
    if isinstance(tags, str):
        raise BadInput("tags is one text, not a list of texts", hint="write tags=['…']")
    listed = tuple(tags)
    check_tags(listed)
    body = MemorySet(encode_value(value), listed)

    def find(tx: Reader) -> MemoryRow | None:
        return tx.memory_get(mesh, ctx.peer, key)

    made = partial(
        Replacing, find, ctx, mesh, "memory.set", key, body, id=id, created_at=created_at
    )
    if expect is None:
        return made()
    expected = read_expect(expect)

    def require(tx: Reader) -> None:
        check_expected(expected, _live(find(tx)), f"memory {key!r}")

    return made(require=require)


def memory_forget(
    ctx: NodeContext, mesh: str, key: str, id: str | None = None, expect: Expect | None = None
) -> Change:
    names.check_key(key)
    expected = None if expect is None else _to_delete(expect)

    def require(tx: Reader) -> None:
        present = _live(tx.memory_get(mesh, ctx.peer, key))
        if expected is not None:
            check_expected(expected, present, f"memory {key!r}")
        elif present is None:
            raise UnknownKey(f"{ctx.peer} remembers nothing under {key!r} in {mesh!r}")

    return Required(require, ctx, mesh, "memory.forget", key, Nothing(), owner=ctx.peer, id=id)
