"""Which messages of an inbox a person asks for.

Sender, destination and time stand in the rows of the inbox, so the store looks for them. Words
stand in the content, which is read from the log message by message; `says` decides there.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.errors import BadValue, OverLimit
from holdfast.rules.limits import INBOX_SEARCH_CHARS_MAX
from holdfast.rules.names import check_key, check_peer


class InboxMatch(msgspec.Struct, frozen=True, kw_only=True):
    """Every field narrows; None lets every message pass."""

    sender: str | None = None
    """The peer that sent it."""
    topic: str | None = None
    """The topic that it was sent to."""
    since_ms: int | None = None
    """The first moment at which it may have arrived."""
    until_ms: int | None = None
    """The first moment at which it is too late."""
    text: str | None = None
    """Words that stand in its text, its sender or its destination, in any case of letters."""

    def check(self) -> InboxMatch:
        if self.sender is not None:
            check_peer(self.sender)
        if self.topic is not None:
            check_key(self.topic, "topic")
        for moment in (self.since_ms, self.until_ms):
            if moment is not None and (isinstance(moment, bool) or not isinstance(moment, int)):
                raise BadValue(f"{moment!r} is no time", hint="give milliseconds since 1970")
        if self.text is not None and len(self.text) > INBOX_SEARCH_CHARS_MAX:
            raise OverLimit(f"a search has {INBOX_SEARCH_CHARS_MAX} characters at most")
        return self

    @property
    def narrows(self) -> bool:
        """Whether a reader may have to look at many messages for each one that it gets."""
        return self != EVERY_MESSAGE

    def says(self, sender: str, ref: str, content: bytes) -> bool:
        """Whether the words of the search stand in a message. Content that is not text has none."""
        if not self.text:
            return True
        wanted = self.text.casefold()
        if wanted in sender.casefold() or wanted in ref.casefold():
            return True
        try:
            return wanted in content.decode().casefold()
        except UnicodeDecodeError:
            return False


EVERY_MESSAGE = InboxMatch()
