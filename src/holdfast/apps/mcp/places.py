"""The names of resources: `holdfast://MESH/state/KEY` and its kin.

A key in a name is percent-encoded where it has to be; slashes may stand as they are. What is read
and what is followed is the place behind a name (`ResourcePlace`), so that two ways to write one key
are one.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from holdfast.rules.errors import BadInput
from holdfast.rules.names import check_mesh

SCHEME: Final = "holdfast://"
KINDS: Final = ("state", "tasks", "conflicts", "inbox", "files")
_KEYED: Final = ("state", "tasks", "files")
_HINT: Final = "see resources/list and resources/templates/list"


class ResourcePlace(NamedTuple):
    """What a name stands for; without a key it is a list."""

    mesh: str
    kind: str
    key: str = ""

    @property
    def uri(self) -> str:
        tail = f"/{quote(self.key, safe='')}" if self.key else ""
        return f"{SCHEME}{self.mesh}/{self.kind}{tail}"


def place_at(uri: str) -> ResourcePlace:
    """The place behind a name; BadInput if it has no place."""
    mesh, _, rest = uri.removeprefix(SCHEME).partition("/")
    kind, slash, key = rest.partition("/")
    if not uri.startswith(SCHEME) or kind not in KINDS or (slash and kind not in _KEYED):
        raise BadInput(f"{uri!r:.200} is no resource here", hint=_HINT)
    try:
        return ResourcePlace(check_mesh(unquote(mesh)), kind, unquote(key, errors="strict"))
    except UnicodeDecodeError:
        raise BadInput(f"{uri!r:.200} is not UTF-8 where it is percent-encoded") from None
