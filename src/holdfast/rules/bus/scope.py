"""What a capability is for: one right, as a text.

    mesh:<name>:read     mesh:<name>:write     mesh:<name>:relay     mesh:<name>:invite
    mesh:<name>:vote     to be a voter of its quorum
    service:<pattern>    to ask for a service
    topic:<pattern>      to publish to a topic, and to listen to it
    relay:<pattern>      to pass on what others have published to a topic

A pattern is a name whose parts are divided by dots. `*` stands for one part, `>` at the end for one
part or more. A scope covers another if it gives everything that the other gives; what cannot be
compared is not covered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.rules.bus.message import MessageKind
from holdfast.rules.bus.topic_pattern import check_pattern
from holdfast.rules.errors import BadInput
from holdfast.rules.names import check_mesh

MESH_RIGHTS: Final = ("read", "write", "relay", "invite", "vote")
JOIN_SCOPE: Final = "service:holdfast.mesh.join"
"""To ask the owner of a mesh to be let in."""
LEAVE_SCOPE: Final = "service:holdfast.mesh.leave"
"""To tell the owner of a mesh that one leaves."""
_PATTERNS: Final = ("service", "topic", "relay")
_HINT: Final = "write mesh:NAME:read, mesh:NAME:write, service:NAME, topic:PATTERN or relay:PATTERN"


def mesh_scope(mesh: str, right: str) -> str:
    return check_scope(f"mesh:{mesh}:{right}")


def check_scope(scope: str) -> str:
    """Raises BadInput unless a text is a scope."""
    kind, _, rest = scope.partition(":")
    if kind == "mesh":
        mesh, _, right = rest.rpartition(":")
        if right not in MESH_RIGHTS:
            raise BadInput(f"{scope!r} names no right in a mesh", hint=_HINT)
        check_mesh(mesh)
    elif kind in _PATTERNS:
        check_pattern(rest)
    else:
        raise BadInput(f"{scope!r} is no scope", hint=_HINT)
    return scope


def covers(wide: str, narrow: str) -> bool:
    """Whether a scope gives all that another one gives."""
    if wide == narrow:
        return True
    kind, _, pattern = wide.partition(":")
    other, _, inner = narrow.partition(":")
    return kind == other and kind in _PATTERNS and _pattern_covers(pattern, inner)


def one_covers(scopes: Iterable[str], narrow: str) -> bool:
    return any(covers(scope, narrow) for scope in scopes)


def may_send(scopes: Iterable[str], kind: MessageKind, topic: str) -> bool:
    """Whether a peer with these rights alone may send such a message. It may answer what it was
    asked, and cancel what it asked for.
    """
    if kind in (MessageKind.REPLY, MessageKind.CANCEL):
        return True
    what = "service" if kind is MessageKind.REQUEST else "topic"
    return bool(topic) and one_covers(scopes, f"{what}:{topic}")


def may_listen(scopes: Iterable[str], pattern: str) -> bool:
    """Whether a peer with these rights alone gets what is published under a pattern: whoever may
    relay it gets it too.
    """
    held = tuple(scopes)
    return one_covers(held, f"topic:{pattern}") or one_covers(held, f"relay:{pattern}")


def relayed_topics(scopes: Iterable[str]) -> tuple[str, ...]:
    """The patterns of the topics that a peer with these rights may relay."""
    return tuple(scope.partition(":")[2] for scope in scopes if scope.startswith("relay:"))


def _pattern_covers(wide: str, narrow: str) -> bool:
    ours, theirs = wide.split("."), narrow.split(".")
    for at, part in enumerate(ours):
        if at == len(theirs):
            return False
        if part == ">":
            return True
        if theirs[at] == ">" or part not in ("*", theirs[at]):
            return False
    return len(ours) == len(theirs)
