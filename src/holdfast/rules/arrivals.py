"""Envelopes as they arrive from outside: read, checked as far as that needs no store, and asked
which objects they name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.rules.bodies import Body, Fact, FileShare, MessageSend, decode_body
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import (
    HoldfastError,
    Refused,
)
from holdfast.rules.fact_decoder import read_fact
from holdfast.rules.message import check_fingerprint

Arrived = tuple[bytes, str, str, str, str, int, bytes]
"""An entry on its way into the log: id, mesh, op, entity, origin, lamport, raw."""


class Arrival:
    """An envelope read and checked, on its way in."""

    __slots__ = ("body", "envelope", "error", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.envelope: Envelope | None = None
        self.body: Body | None = None
        self.error: HoldfastError | None = None
        try:
            self.envelope = decode(raw)
            self.body = decode_body(self.envelope)
            if isinstance(self.body, MessageSend):
                check_fingerprint(self.envelope, self.body)
        except Refused as error:
            self.error = error


Arrivals = list[Arrived | Arrival]
"""What arrived, in order: a plain fact as the log takes it, everything else with its envelope."""


def read_arrivals(batch: Iterable[bytes]) -> Arrivals:
    """Reads and checks envelopes, as far as that needs no store."""
    return [read_fact(raw) or Arrival(raw) for raw in map(bytes, batch)]


class Named(NamedTuple):
    """An object that an entry names."""

    sha256: str
    size: int | None


def objects_of(arrivals: Arrivals) -> list[Named]:
    """The objects that arrivals name, each once: they must be here before the arrivals are applied.
    An arrival that cannot be read names nothing.
    """
    found: dict[str, Named] = {}
    for one in arrivals:
        if isinstance(one, tuple) or one.error is not None:
            continue  # plain facts name nothing
        if isinstance(one.body, FileShare) and one.body.content is None:
            sha = one.body.sha256.hex()
            found.setdefault(sha, Named(sha, one.body.size))
        elif isinstance(one.body, Fact):
            for sha in (digest.hex() for digest in one.body.objects):
                found.setdefault(sha, Named(sha, None))
    return list(found.values())
