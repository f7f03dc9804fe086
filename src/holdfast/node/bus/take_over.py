"""A node that has changed its key goes on as the owner of its meshes.

The lists of meshes without a broker are signed by the key that the owner had. The new key signs
them anew, with the statement of the old one, so that members can follow. A switch of the key may be
cut short before that is done: so whoever works with lists of its own looks first.
"""

from __future__ import annotations

import msgspec
from nacl.signing import SigningKey

from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.bus.meshes.member_list import MemberList, succeeded, trusted_list
from holdfast.storage.ports import Reader, Transaction


def is_due(tx: Reader, own_key: OwnKey) -> bool:
    """Whether an earlier key of this node still owns a mesh."""
    former = own_key.former_keys()
    return bool(former) and any(row.owner in former for row in tx.bus_mesh_list())


def take_over(tx: Transaction, own_key: OwnKey, now_ms: int) -> list[MemberList]:
    """Signs the lists of what an earlier key of this node owns; returns the new ones."""
    chain, key = own_key.former(), SigningKey(own_key.seed())
    starts = {step.before: number for number, step in enumerate(chain)}
    made = []
    for row in tx.bus_mesh_list():
        if row.owner in starts:
            steps = chain[starts[row.owner] :]
            members = succeeded(key, trusted_list(row.members), steps, now_ms)
            tx.bus_mesh_put(msgspec.structs.replace(row, owner=members.owner, members=members.raw))
            made.append(members)
    return made
