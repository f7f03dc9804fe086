"""Presence: what a peer says of itself in a mesh: a display name, a status, a summary.

It is the peer's own memory under one key. So it replicates, merges (the last writer wins), is
exported, imported, folded and audited as any memory is, also by nodes that do not know of presence;
and only the peer itself can write it, because the door refuses a memory whose owner is not its
origin (docs/decisions/0095-presence-is-a-memory.md).

What others say of themselves is data of theirs: a field that is no text, or too long, counts as not
given.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.rules.bodies import decode_value
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import PRESENCE_NAME_BYTES_MAX, PRESENCE_TEXT_BYTES_MAX
from holdfast.rules.rows import MemoryRow

KEY: Final = "holdfast/presence"
"""The key of the memory."""

_MOST: Final = {
    "display_name": PRESENCE_NAME_BYTES_MAX,
    "status": PRESENCE_NAME_BYTES_MAX,
    "summary": PRESENCE_TEXT_BYTES_MAX,
}


class Introduction(msgspec.Struct, frozen=True):
    """What a peer says of itself. An empty text says nothing."""

    display_name: str = ""
    status: str = ""
    summary: str = ""

    def document(self) -> dict[str, str]:
        """As the value of the memory."""
        return {name: text for name, text in msgspec.structs.asdict(self).items() if text}


def checked_presence(presence: Introduction) -> Introduction:
    """Raises BadInput for a text that others would not show."""
    for name, most in _MOST.items():
        text = getattr(presence, name)
        if not _is_fit(text, most):
            raise BadInput(
                f"{name} is no line of at most {most} bytes",
                hint="one line of text, without control characters",
            )
    return presence


def presence_of(row: MemoryRow | None) -> Introduction:
    """What the memory says, as far as it can be shown."""
    if row is None or row.tombstone:
        return Introduction()
    value = decode_value(row.value)
    if not isinstance(value, dict):
        return Introduction()
    return Introduction(**{n: value[n] for n, most in _MOST.items() if _is_fit(value.get(n), most)})


def _is_fit(text: Any, most: int) -> bool:
    return (
        isinstance(text, str)
        and len(text.encode(errors="replace")) <= most
        and all(letter.isprintable() for letter in text)
    )
