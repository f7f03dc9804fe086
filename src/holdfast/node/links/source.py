"""The node at the other end of a link, as the link sees it.

`transport.peer_client.PeerClient` is one over TLS; tests and simulations have their own. A call
raises the error that the source reports. It raises Unreachable where the source does not answer or
has trouble of its own: a disk that is full there is no reason to stop for want of room here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.protocol.commit_page import StateObject
from holdfast.protocol.link_snapshot import LinkSnapshotPart, SnapshotPartAsked
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.rules.links import consumer_name
from holdfast.rules.rows import LinkRow

if TYPE_CHECKING:
    from holdfast.node.trust.trust import Trust


class LinkSource(Protocol):
    """One connection to a source. A second thread may call while a fetch waits."""

    def register(self, registration: Registration) -> int | None:
        """Returns the last offset of the source's log; None if it does not say."""

    def fetch(self, fetch: Fetch) -> Batch:
        """Raises `BatchCut` if the line breaks in the middle of a batch."""

    def confirm(self, confirmation: Confirmation) -> None: ...
    def commits_held(self) -> dict[str, int]:
        """By mesh with voters: how far the source is; empty if it knows nothing of such."""

    def commits_page(self, mesh: str, first: int) -> bytes:
        """A page of what the quorum of a mesh has committed."""

    def committed_state(self, mesh: str, have: int) -> StateObject:
        """An object with everything that the source has of an order, for one that has `have`
        commits.
        """

    def snapshot_part(self, asked: SnapshotPartAsked) -> LinkSnapshotPart:
        """A part of what the source's tables show and its log no longer holds. Raises Truncated
        where that does not make up for what is gone, NotFound if the source knows of no such.
        """

    def retire(self, consumer: str) -> None: ...
    def object_size(self, sha: str) -> int | None:
        """None if the source does not have it."""

    def object(self, sha: str, start: int, size: int) -> bytes: ...
    def abort(self) -> None:
        """Makes calls that wait fail at once, and every later call too."""

    def close(self) -> None: ...


Reach = Callable[[LinkRow], LinkSource]
"""Makes a connection for a link. Nothing is sent before the first call."""


def registration_of(row: LinkRow, us: str) -> Registration:
    """How a link registers at its source: its filter, without what came from here."""
    filter = msgspec.structs.replace(row.filter, beyond=us)
    return Registration(consumer=consumer_name(us, row.name), filter=filter)


def reach_by(trust: Trust) -> Reach:
    """Connections as this node makes them: it proves itself, and so does the other end."""

    def reach(link: LinkRow) -> LinkSource:
        # Imported here: it brings TLS along, and a command that only reads the store needs none.
        from holdfast.transport.peer_client import PeerClient

        # The seed is read for every hello: a key that was switched needs no restart.
        us = (trust.name, trust.seed)
        return PeerClient(link.url, us=us, pinned=lambda: trust.zone(link.zone))

    return reach
