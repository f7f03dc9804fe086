"""How this node comes to belong to a group: it founds one, is offered a place, or recovers alone.

Each of them is noted in the Raft log first and in the home's store after it. What was cut short in
between goes on when it is asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from holdfast.node.core.commit import CommitRun
from holdfast.node.core.committed_intake import forget_claims
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.embedded.committed_entries import readable_entries
from holdfast.node.quorum.embedded.group import Group, MeshTrust
from holdfast.node.quorum.embedded.log_disk import entry_of
from holdfast.node.quorum.embedded.store_fold import FOLD, Write
from holdfast.protocol.quorum_frames import GroupOffered
from holdfast.rules.errors import AlreadyExists, MustRejoin
from holdfast.rules.limits import QUORUM_FOLD_BYTES
from holdfast.rules.quorum.log_rows import (
    FOUNDED_AT,
    TAG_BYTES,
    TAKES_PART,
    GroupRow,
    GroupWrite,
    HardStateRow,
)
from holdfast.rules.quorum.order_move import first_voter_id
from holdfast.rules.quorum.raft.config import (
    GroupConfig,
    GroupMember,
    encode_config,
    first_config,
)
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog

log = logging.getLogger("holdfast")


class GroupKeeper(Protocol):
    """Who drives the groups."""

    async def open(self) -> SqliteQuorumLog: ...
    def begin(self, row: QuorumRow, contacts: Sequence[GroupMember] = ()) -> Group: ...
    def end(self, group: Group) -> None: ...
    def require(self, mesh: str) -> Group: ...
    def of_mesh(self, mesh: str) -> Group | None: ...


class GroupBeginnings:
    """Belongs to one event loop."""

    def __init__(
        self,
        groups: GroupKeeper,
        engine: NodeEngine,
        write: Write,
        trust: MeshTrust,
        random: Callable[[int], bytes],
    ) -> None:
        self._groups, self._engine, self._write, self._trust = groups, engine, write, trust
        self._random = random

    async def found(self, mesh: str) -> Group:
        """This node begins a group, as its only voter. AlreadyExists if there is or was one."""
        self._engine.require_mesh(mesh)
        if self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh)) is not None:
            raise AlreadyExists(
                f"the mesh {mesh!r} has voters already", hint=f"see: holdfast quorum status {mesh}"
            )
        opened = await self._groups.open()
        begun = next((row for row in opened.groups() if row.scope == mesh), None)
        if begun is None:
            config = first_config(((self._engine.ctx.peer, self._trust.our_key()),))
            begun = await asyncio.to_thread(
                partial(
                    opened.init,
                    mesh,
                    tag=self._random(TAG_BYTES),
                    voter=1,
                    config=encode_config(config),
                )
            )
        elif self._was_ours_alone(mesh, begun):
            # The mesh was deleted here and made anew: its order begins anew too, and an entry of
            # the old log is none of it.
            tag, incarnation = self._random(TAG_BYTES), begun.incarnation + 1
            if begun.standing == "voter":  # a try to do so was cut short
                tag, incarnation = begun.tag, begun.incarnation
            return await self.found_behind(
                QuorumRow(mesh=mesh, incarnation=incarnation, tag=tag, voter=None)
            )
        elif begun.voter != 1 or begun.standing != "voter":
            raise AlreadyExists(
                f"this node has belonged to a quorum of {mesh!r}",
                hint="let one of its voters add this node again",
            )
        # Else an earlier try was cut short after the log had it, or the store is an older one.
        row = QuorumRow(mesh=mesh, incarnation=begun.incarnation, tag=begun.tag, voter=1)
        await self._write("quorum.init", lambda tx: tx.quorum_put(row))
        return self._groups.begin(row)

    def _was_ours_alone(self, mesh: str, begun: GroupRow) -> bool:
        """Whether what the log has of a group is the past of a mesh that this node owns."""
        bus = self._engine.read("quorum.init", lambda tx: tx.bus_mesh_get(mesh))
        if (bus is not None and bus.capability) or self._engine.require_mesh(
            mesh
        ).kind == "shared_guest":
            return False
        again = begun.voter == first_voter_id(begun.incarnation) and begun.incarnation > 1
        return begun.standing == "removed" or (begun.standing == "voter" and again)

    async def found_behind(self, row: QuorumRow) -> Group:
        """This node begins the group of an incarnation that goes on behind what it has folded, as
        its only voter. Whoever joins gets all of that as a snapshot first.
        """
        mesh, voter = row.mesh, first_voter_id(row.incarnation)
        opened = await self._groups.open()
        me = GroupMember(voter, self._engine.ctx.peer, self._trust.our_key(), "voter")
        begun = await asyncio.to_thread(
            partial(
                opened.found,
                mesh,
                incarnation=row.incarnation,
                tag=row.tag,
                voter=voter,
                config=encode_config(GroupConfig((me,), voter + 1)),
                term=0 if row.fence is None else row.fence.lease_epoch,
            )
        )

        def note(tx: Transaction) -> QuorumRow:
            ours = msgspec.structs.replace(
                row, engine="embedded", voter=begun.voter, applied=FOUNDED_AT
            )
            tx.quorum_put(ours)
            return ours

        return self._groups.begin(await self._write("quorum.init", note))

    async def recover_behind(self, mesh: str) -> Group:
        """The same in a new incarnation, on a node that had no vote: nobody who had one is left."""
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        assert row is not None, "its order is known here"
        tag, incarnation = self._random(TAG_BYTES), row.incarnation + 1
        return await self.found_behind(
            msgspec.structs.replace(row, incarnation=incarnation, tag=tag)
        )

    async def recover(self, mesh: str) -> Group:
        """This node goes on alone, with all that its log has, in a new incarnation: what it has of
        entries that were never known to be committed is committed now. A crash in between leaves
        a group that cannot act, and it is recovered again.
        """
        group = self._groups.require(mesh)
        if group.order.part in ("must_rejoin", "removed", "failed"):
            raise MustRejoin(
                f"this node has no whole log of {mesh!r} to go on with: {group.order.problem}",
                hint="recover on another voter, then add this node again",
            )
        opened, old = await self._groups.open(), group.driver.state.log.config
        self._groups.end(group)
        tag, voter = self._random(TAG_BYTES), old.next_id
        incarnation = group.row.incarnation + 1
        await asyncio.to_thread(
            partial(opened.begin_incarnation, mesh, incarnation=incarnation, tag=tag, voter=voter)
        )

        def move(tx: Transaction) -> QuorumRow:
            row = tx.quorum_get(mesh)
            assert row is not None, "this node is a voter of it"
            moved = msgspec.structs.replace(row, incarnation=incarnation, tag=tag, voter=voter)
            tx.quorum_put(moved)
            forget_claims(tx, mesh)  # whoever recovers has decided which order counts
            return moved

        row: QuorumRow = await self._write("quorum.recover", move)
        applied = await self._fold_rest(opened, mesh, row)
        me = GroupMember(voter, self._engine.ctx.peer, self._trust.our_key(), "voter")
        config = GroupConfig((me,), voter + 1)
        head = opened.head(mesh)
        decided = HardStateRow(term=head.term, vote=head.vote, commit=applied)
        write = GroupWrite(scope=mesh, voter=voter, number=head.written + 1, hard=decided)
        await asyncio.to_thread(opened.save, write)
        await asyncio.to_thread(opened.compact, mesh, applied, encode_config(config))
        return self._groups.begin(msgspec.structs.replace(row, applied=applied))

    async def _fold_rest(self, opened: SqliteQuorumLog, mesh: str, row: QuorumRow) -> int:
        """Folds what the log has beyond what was applied; returns the end of it."""
        last = opened.head(mesh).last
        applied = row.applied
        while applied < last:
            rows = opened.entries(mesh, applied + 1, last + 1, QUORUM_FOLD_BYTES)
            entries = [entry_of(one) for one in rows]
            run = readable_entries(row.incarnation, applied + 1, entries)
            if run:
                await self._write(FOLD, CommitRun(self._engine.ctx, mesh, run))
            applied += len(rows)
        return applied

    def _contested(self, teller: str, mesh: str) -> None:
        """Says, once, that another group wants to decide for a mesh."""
        group = self._groups.of_mesh(mesh)
        problem = f"{teller} offers a vote in another quorum of it: two groups claim this mesh"
        if group is None or group.order.problem != problem:
            log.error("quorum of %s: %s", mesh, problem)
        if group is not None:
            group.order.problem = problem

    def _is_another_order(self, offer: GroupOffered, group: Group | None) -> bool:
        """Whether this node cannot join without losing what its own order has committed."""
        known = self._engine.read("quorum.get", lambda tx: tx.quorum_get(offer.mesh))
        is_other = known is not None and known.tag != offer.group
        if is_other and known is not None and known.incarnation >= offer.incarnation:
            return True
        if group is None:
            return False
        if offer.incarnation > group.row.incarnation and group.order.has_quorum:
            return True  # what its own group commits would be lost with it
        # It has committed other things: its store cannot go on with that order.
        return any(claim.number for claim in group.order.claims)

    async def _take_place(self, opened: SqliteQuorumLog, offer: GroupOffered) -> bool:
        """Notes in the Raft log that this node learns under its new id; False if it may not."""
        mesh = offer.mesh
        began = next((row for row in opened.groups() if row.scope == mesh), None)
        if began is not None and (
            began.incarnation < offer.incarnation and began.standing in TAKES_PART
        ):  # of an order that has ended since
            await asyncio.to_thread(opened.set_standing, mesh, began.voter, "removed")
        if began is not None and began.voter == offer.id:
            # Else it was taken from us, or lost: the leader has to remove that id first.
            return began.standing == "learner" and began.tag == offer.group
        place = partial(opened.join, mesh, incarnation=offer.incarnation, tag=offer.group)
        await asyncio.to_thread(partial(place, voter=offer.id))
        return True

    async def join(self, teller: str, offer: GroupOffered) -> None:
        """A leader has said that this node belongs to its group, under a new id."""
        mesh = offer.mesh
        if self._engine.read("mesh.get", lambda tx: tx.mesh_get(mesh)) is None:
            return
        group = self._groups.of_mesh(mesh)
        if self._is_another_order(offer, group):
            self._contested(teller, mesh)
            return
        opened = await self._groups.open()
        if group is not None:
            is_later = offer.incarnation > group.row.incarnation
            if group.order.part not in ("removed", "must_rejoin") and not is_later:
                return
            self._groups.end(group)
            if is_later:
                # The mesh was recovered without this node, and has asked for it again.
                gone = partial(opened.set_standing, mesh, group.row.voter, "removed")
                await asyncio.to_thread(gone)
        if not await self._take_place(opened, offer):
            return

        def note(tx: Transaction) -> QuorumRow:
            row = tx.quorum_get(mesh) or QuorumRow(
                mesh=mesh, incarnation=offer.incarnation, tag=offer.group
            )
            # Entries that this node has folded before are known by their ids, and come again.
            row = msgspec.structs.replace(
                row,
                engine="embedded",
                incarnation=offer.incarnation,
                tag=offer.group,
                voter=offer.id,
                applied=0,
            )
            tx.quorum_put(row)
            forget_claims(tx, mesh)
            return row

        row: QuorumRow = await self._write("quorum.join", note)
        log.warning("this node learns to vote in %s, as member %d", mesh, offer.id)
        self._groups.begin(row, offer.config.members)
