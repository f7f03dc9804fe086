"""One call of an agent: the node that it works on, and what all tools need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.node.core.change import Receipt
from holdfast.rules.errors import BadInput, NotGranted, OverLimit, UnknownMesh
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text
from holdfast.rules.limits import MCP_ANSWER_BYTES_MAX
from holdfast.rules.warnings_told import warning_document

if TYPE_CHECKING:
    from holdfast.node.library.node import Mesh, Node

_APART = "\t"
"""Between owner and key in a place: no name of a peer has one."""

R = TypeVar("R")
T = TypeVar("T")


class AgentCall:
    """What the function of a tool works with. A call that is made again, because its daemon has
    gone, keeps the id that it was given.
    """

    def __init__(self, fresh_id: str, mesh: str | None = None) -> None:
        """`mesh` is meant where an agent names none."""
        self._fresh_id, self._default = fresh_id, mesh
        self._node: Node | None = None

    def on(self, node: Node) -> AgentCall:
        self._node = node
        return self

    @property
    def node(self) -> Node:
        assert self._node is not None, "a call runs on a node"
        return self._node

    def mesh(self, named: str | None) -> Mesh:
        """The mesh that is meant: the named one, the one of the server, or the only one."""
        named = named or self._default
        if named is not None:
            try:
                return self.node.mesh(named)
            except UnknownMesh as error:
                error.hint = f"the meshes here are: {', '.join(self.slugs()) or 'none'}"
                raise
        slugs = self.slugs()
        if not slugs:
            raise UnknownMesh(
                "there is no mesh here yet", hint="ask the user to run: holdfast mesh create NAME"
            )
        if len(slugs) > 1:
            raise BadInput(
                f"there are several meshes: {', '.join(slugs)}", hint="say which one as `mesh`"
            )
        return self.node._mesh_there(slugs[0])  # the list has just named it

    def slugs(self) -> list[str]:
        return [row.slug for row in self.node.meshes()]

    def id(self, given: str | None, mesh: Mesh) -> str:
        """The id of a write: what the agent's name for it stands for, else a new one."""
        if given is None:
            return self._fresh_id
        return id_text(id_of_key(given, mesh.slug, self.node.peer))

    def receipt(self, mesh: Mesh, done: Receipt) -> dict[str, Any]:
        return {
            "mesh": mesh.slug,
            "id": done.id,
            "stamp": str(done.stamp),
            "duplicate": done.duplicate,
            "outcome": str(done.outcome),
        }

    def warnings(self, mesh: str | None) -> list[dict[str, Any]]:
        """What the user of this node must know and was not told; nothing for those who only
        read."""
        try:
            rows = self.node.take_warnings(mesh)
        except NotGranted:
            return []
        return [warning_document(row) for row in rows]


def page(
    rows: Iterable[R], limit: int, shown: Callable[[R], T], place: Callable[[R], str]
) -> tuple[tuple[T, ...], str | None]:
    """The first rows as documents, as many as an answer has room for, and where the rest begins."""
    found: list[T] = []
    last, size = None, 0
    for row in rows:
        document = shown(row)
        size += len(msgspec.json.encode(document))
        if len(found) == limit or (found and size > MCP_ANSWER_BYTES_MAX):
            assert last is not None
            return tuple(found), place(last)
        check_size(size, place(row))
        found.append(document)
        last = row
    return tuple(found), None


def pair(owner: str, key: str) -> str:
    """The place of a row that has an owner and a key, as `next` says it."""
    return f"{owner}{_APART}{key}"


def read_pair(text: str | None) -> tuple[str, str]:
    """The owner and the key again; before all of them if nothing is given."""
    owner, apart, key = (text or _APART).partition(_APART)
    if not apart:
        raise BadInput(f"{text!r:.60} is no place in this list", hint="give the `next` of a page")
    return owner, key


def check_size(size: int, what: str) -> None:
    """Raises OverLimit for what does not fit into one answer."""
    if size > MCP_ANSWER_BYTES_MAX:
        raise OverLimit(
            f"{what!r} has {size} bytes, and an answer to an agent at most {MCP_ANSWER_BYTES_MAX}",
            hint="the user can read it with the holdfast command; it is too large for this one",
        )
