"""What a node asks its broker for over HTTP, beside the WebSocket: objects, members, snapshots.

Every call blocks. The daemon makes them in threads, and `end` wakes those that wait; the simulator
makes them with a client whose calls are lost now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import PieceSize, pull_objects
from holdfast.node.sharing import join
from holdfast.node.snapshots.download import take_snapshot
from holdfast.node.snapshots.upload import keep_snapshot, upload_snapshot
from holdfast.node.sync.commits import bring_state, carry_commits, commits_here
from holdfast.node.sync.session import BrokerAddress
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import BlobCorrupt, BlobMissing, BodyTooLarge, NotAllowed
from holdfast.rules.rows import KnownMember

log = logging.getLogger("holdfast")


class BrokerRequests:
    """The HTTP side of one connection with a broker."""

    def __init__(
        self,
        engine: NodeEngine,
        asking: BrokerClient,
        carrying: BrokerClient,
        pieces: PieceSize | None = None,
    ) -> None:
        """Objects may be large: what is small must not wait behind them, so there are two clients,
        `asking` for the small and `carrying` for the large.
        """
        self._engine, self._asking, self._carrying = engine, asking, carrying
        self._pieces = pieces or PieceSize()
        self._over = False

    @classmethod
    def of(
        cls,
        engine: NodeEngine,
        trust: Trust,
        broker: BrokerAddress,
        pieces: PieceSize | None = None,
    ) -> BrokerRequests:
        """With clients of its own, that speak as this node."""
        asking, carrying = (BrokerClient.of(trust, broker.url, broker.card) for _ in range(2))
        return cls(engine, asking, carrying, pieces)

    def end(self) -> None:
        """Breaks off what is under way, for good; from any thread."""
        self._over = True
        self._asking.abort()
        self._carrying.abort()

    def close(self) -> None:
        """When nothing is under way any more."""
        self._asking.close()
        self._carrying.close()

    def bring(self, mesh: str, objects: Iterable[str]) -> list[str]:
        """Brings objects to the broker, those that it lacks. Returns all of them: what we do not
        have, or may not bring, must not hold up for ever what names it.
        """
        done = []
        for sha in objects:
            try:
                self._carrying.put_object(self._engine, mesh, sha)
            except (BlobMissing, BlobCorrupt, BodyTooLarge, NotAllowed) as error:
                log.warning("object %s was not brought to the broker: %s", sha, error.message)
            done.append(sha)
        return done

    def fetch(self, mesh: str, objects: Iterable[str]) -> set[str]:
        """Brings objects from the broker; returns those that it does not have."""
        source = self._carrying.objects(mesh)
        return pull_objects(
            self._engine, source, objects, lambda pulled: None, lambda: self._over, self._pieces
        )

    def take_snapshot(self, mesh: str) -> bool:
        """False if the broker has none."""
        took = take_snapshot(self._engine, self._carrying, mesh, ended=lambda: self._over)
        return took is not None

    def upload_snapshot(self, mesh: str) -> None:
        upload_snapshot(self._engine, self._carrying, mesh)
        if commits_here(self._engine, mesh):
            bring_state(self._engine, self._carrying, mesh)

    def keep_snapshot(self, mesh: str) -> None:
        """The broker may have lost the one that we made: then it gets it again."""
        keep_snapshot(self._engine, self._carrying, mesh)

    def carry_commits(self, mesh: str, *, may_bring: bool) -> int:
        """Evens out what both sides have of an order; returns how far the broker is then."""
        calls = self._carrying
        return carry_commits(
            self._engine, calls, mesh, calls.name, lambda: self._over, may_bring=may_bring
        )

    def finish_join(self, mesh: str) -> None:
        """Takes the snapshot of a mesh whose joining was cut off before it had."""
        join.go_on(self._engine, self._carrying, mesh, ended=lambda: self._over)

    def members(self, mesh: str) -> list[KnownMember]:
        """Who takes part in a mesh now."""
        return [
            KnownMember(
                mesh=mesh,
                key=bytes.fromhex(member.key),
                name=member.name,
                grants=tuple(member.grants),
                seen_at=member.seen_at,
            )
            for member in self._asking.members(mesh)
        ]
