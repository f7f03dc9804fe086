"""What a node's store keeps of messages that came: a part of `ports`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.inbox_match import EVERY_MESSAGE, InboxMatch
from holdfast.rules.rows import InboxRow


class InboxReader(Protocol):
    def inbox_get(self, id: bytes) -> InboxRow | None: ...
    def inbox_list(
        self,
        mesh: str | None,
        unread_only: bool,
        after: int,
        limit: int,
        match: InboxMatch = EVERY_MESSAGE,
    ) -> list[InboxRow]:
        """Rows with number > after, by number. With a match that narrows, only among the next
        INBOX_SCAN_ROWS numbers; its words are not looked at.
        """

    def inbox_ids_within(self, span: IdSpan, limit: int) -> list[bytes]:
        """Ids of messages that lie in a span, in order."""

    def inbox_unhooked(self, limit: int) -> list[InboxRow]:
        """Messages that no hook was run for, by number."""

    def inbox_last(self) -> int:
        """The number of the newest message; 0 if there is none."""

    def inbox_counts(self) -> tuple[int, int]:
        """How many messages there are, and how many of them are unread."""

    def inbox_floor(self, after: int) -> int | None:
        """The lowest offset in the log, behind `after`, of an unread message."""


class InboxWriter(InboxReader, Protocol):
    def inbox_add(self, row: InboxRow) -> bool:
        """False, and nothing changes, if the id is known. Numbers grow, and none comes twice."""

    def inbox_read(self, id: bytes, now_ms: int) -> bool:
        """Marks a message as read; the first time counts. False if there is no such message."""

    def inbox_hooked(self, numbers: Sequence[int], now_ms: int) -> None: ...
    def inbox_sweep(self, below_offset: int, most: int) -> int:
        """Removes messages whose envelopes are gone from the log; returns how many."""
