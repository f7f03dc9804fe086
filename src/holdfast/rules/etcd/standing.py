"""Whether a node can go on with an incarnation of an order: only if it has folded what the order
says was committed before it, no less and nothing else.

An order may begin in the middle of the history of its mesh: after a recovery, or when the mesh came
from another engine. Then the commits before it are not in this etcd.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.errors import MustRejoin
from holdfast.rules.etcd.entry import OrderBase, OrderState
from holdfast.rules.quorum.state_rows import QuorumRow


def first_standing(mesh: str, state: OrderState) -> QuorumRow:
    """Where a node stands that begins with an order, and has nothing of the mesh's commits."""
    base = state.bases[0] if state.bases else None
    if base is None:
        return QuorumRow(mesh=mesh, engine="etcd", incarnation=state.incarnation, tag=b"")
    row = QuorumRow(mesh=mesh, engine="etcd", incarnation=base.incarnation, tag=base.nonce)
    _check(row, base)
    return row


def joined_standing(mesh: str, row: QuorumRow | None, state: OrderState) -> QuorumRow:
    """Where a node stands that joins an order, and may have got commits of the mesh from others.
    If the last of them is of this order, it goes on behind it: the sequence of a fence is the
    position of its entry. MustRejoin if it can go on nowhere.
    """
    fence = None if row is None else row.fence
    if row is None or fence is None or not state.bases:
        return first_standing(mesh, state)
    row = msgspec.structs.replace(row, engine="etcd", voter=None, applied=0)
    base = state.base(fence.incarnation)
    if base is None:
        return standing_in(row, state, max(row.incarnation, state.bases[0].incarnation))
    return msgspec.structs.replace(
        row, incarnation=base.incarnation, tag=base.nonce, applied=fence.sequence
    )


def standing_in(row: QuorumRow, state: OrderState, incarnation: int) -> QuorumRow:
    """The standing of a node that is about to fold the first entry of an incarnation, and has
    folded all before it. MustRejoin if it cannot go on with that.
    """
    base = state.base(incarnation)
    if incarnation < row.incarnation or base is None:
        raise MustRejoin(
            f"{row.mesh!r} is in incarnation {row.incarnation} here, and the etcd has an entry of "
            f"incarnation {incarnation}",
            hint="two orders claim the same mesh: find out which of them is the right one",
        )
    _check(row, base)
    return msgspec.structs.replace(row, incarnation=incarnation, tag=base.nonce)


def check_same_order(row: QuorumRow, state: OrderState) -> None:
    """MustRejoin if the etcd holds another order than the one that this node follows: the same
    incarnation, begun by somebody else.
    """
    base = state.base(row.incarnation)
    if base is not None and row.tag and base.nonce != row.tag:
        raise MustRejoin(
            f"the etcd holds another incarnation {row.incarnation} of {row.mesh!r} than the one "
            "that this node is in",
            hint="two orders claim the same mesh: see that the address names the right etcd and "
            "scope",
        )


def after_set_back(row: QuorumRow, state: OrderState) -> QuorumRow | None:
    """The standing of a node that has seen more than the etcd has. If somebody has recovered the
    order with just what this node has, it goes on from there; None if nobody has recovered it.
    """
    base = state.base(state.incarnation)
    if state.incarnation <= row.incarnation or base is None:
        return None
    moved = standing_in(row, state, state.incarnation)
    return msgspec.structs.replace(moved, applied=base.position)


def _check(row: QuorumRow, base: OrderBase) -> None:
    fence = "" if row.fence is None else str(row.fence)
    if (row.number, fence) == (base.commits, base.fence):
        return
    raise MustRejoin(
        f"incarnation {base.incarnation} of {row.mesh!r} begins behind commit {base.commits}, "
        f"{base.fence or 'no fence'}; this node is at {row.number}, {fence or 'no fence'}",
        hint="let this node get the commits of the mesh from another member first",
    )
