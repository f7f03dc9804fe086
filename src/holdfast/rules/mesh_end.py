"""The end of a mesh in a home: what it owes to others, and what is said in the log.

Deleting a mesh removes its rows here and nowhere else. What others still wait for would be lost
with them, so that is said first, and a person has to agree to it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.rules.bodies import Fact, encode_body, family_of
from holdfast.rules.data_classes import data_class_of, write_class_of
from holdfast.rules.envelope import UNCOUNTED, Envelope, encode
from holdfast.rules.errors import Conflict, MeshOwes
from holdfast.rules.fingerprint import fingerprint

ENDS: Final = "holdfast.deleted"
"""The mesh that is named by entries of the log which only keep its count. There is no such mesh."""
_OP: Final = "fact.append"


class MeshDebts(msgspec.Struct, frozen=True, kw_only=True):
    """What a mesh owes to others, as far as this node knows."""

    unsent: int = 0
    """Changes and messages that no broker has got yet."""
    writes: int = 0
    """Strong writes that wait for a majority."""
    readers: tuple[str, ...] = ()
    """Readers of the log that have not confirmed the last entries of the mesh."""
    broker: str = ""
    """The address of the broker through which it is shared."""
    owns_at_broker: bool = False
    over_bus: bool = False
    owns_on_bus: bool = False
    votes: bool = False
    """This node is a voter of its quorum."""

    def __bool__(self) -> bool:
        return self != MeshDebts()

    def lines(self) -> list[str]:
        """As sentences for people, the gravest first."""
        found = []
        if self.votes:
            found.append("this node is a voter of it")
        if self.owns_at_broker:
            found.append(f"this node owns it at {self.broker}, and others share it there")
        elif self.broker:
            found.append(f"this node is a member of it at {self.broker}")
        if self.owns_on_bus:
            found.append("this node owns it on the bus, and admits its members")
        elif self.over_bus:
            found.append("this node is a member of it on the bus")
        if self.unsent:
            found.append(f"{self.unsent} changes and messages were not sent")
        if self.writes:
            found.append(f"{self.writes} strong writes wait for a majority")
        if self.readers:
            found.append(f"not confirmed by {', '.join(self.readers)}")
        return found


def check_debts(mesh: str, debts: MeshDebts, us: str, *, owed_too: bool) -> None:
    """Raises what keeps a mesh from being deleted by the node `us`. A vote is not given up by this:
    the other voters would wait for a node that never answers.
    """
    if debts.votes:
        raise Conflict(
            f"this node is a voter of {mesh!r}, and the others count on its vote",
            hint=f"end that first: holdfast quorum remove {us} --mesh {mesh}; if it is the only "
            "voter, with --last",
        )
    if debts and not owed_too:
        leave = ""
        if debts.broker or debts.over_bus:
            leave = f"tell the others first: holdfast mesh leave {mesh}; "
        raise MeshOwes(
            f"{mesh!r} owes something to others: {'; '.join(debts.lines())}",
            hint=f"{leave}to give it up: holdfast mesh delete {mesh} --owed-too",
        )


def end_note(peer: str, id: bytes, now_ms: int) -> bytes:
    """An entry for the log that only says that a mesh was deleted, and not which."""
    body = encode_body(Fact("deleted", b"true"))
    return encode(
        Envelope(
            id=id,
            mesh=ENDS,
            op=_OP,
            entity="mesh",
            origin=peer,
            epoch=UNCOUNTED,
            seq=1,
            lamport=1,
            created_at=now_ms,
            write_class=write_class_of(data_class_of(family_of(_OP)), voters=False).value,
            fingerprint=fingerprint(kind=_OP, ref="mesh", body=body),
            body=body,
        )
    )
