"""Envelopes as they arrive from outside: decoded once, and checked as far as that needs no store.

An arrival comes in one of two forms. A plain fact is a tuple with just what the log stores of it
(`Arrived`), because facts come by the hundred thousand. Everything else, bad envelopes included,
is an `Arrival` with its decoded envelope and body, or with the error that refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.rules.bodies import Body, Fact, FileShare, MessageSend, decode_body
from holdfast.rules.commit_fields import check_commit_fields
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import (
    HoldfastError,
    Refused,
)
from holdfast.rules.fact_decoder import read_fact
from holdfast.rules.message import check_fingerprint

Arrived = tuple[bytes, str, str, str, str, int, bytes]
"""What the log stores of an entry: id, mesh, op, entity, origin, lamport, raw."""


class Arrival:
    """One envelope with its body, decoded and checked; `error` says why it is refused."""

    __slots__ = ("body", "envelope", "error", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.envelope: Envelope | None = None
        self.body: Body | None = None
        self.error: HoldfastError | None = None
        try:
            self.envelope = decode(raw)
            check_commit_fields(self.envelope)
            self.body = decode_body(self.envelope)
            if isinstance(self.body, MessageSend):
                check_fingerprint(self.envelope, self.body)
        except Refused as error:
            self.error = error


Arrivals = list[Arrived | Arrival]
"""A batch in the order in which it arrived."""


def read_arrivals(batch: Iterable[bytes]) -> Arrivals:
    """Decodes and checks a batch of envelopes. Bad ones are in the result with their error."""
    return [read_fact(raw) or Arrival(raw) for raw in map(bytes, batch)]


def raw_of(arrival: Arrived | Arrival) -> bytes:
    """The bytes of an envelope as they came."""
    return arrival[-1] if isinstance(arrival, tuple) else arrival.raw


def header_of(arrival: Arrived | Arrival) -> Arrived | None:
    """What the log would store of an arrival; None if its envelope cannot be decoded."""
    if isinstance(arrival, tuple):
        return arrival
    e = arrival.envelope
    if e is None:
        return None
    return e.id, e.mesh, e.op, e.entity, e.origin, e.lamport, arrival.raw


class Named(NamedTuple):
    """An object that an entry names."""

    sha256: str
    size: int | None
    """None if the entry does not tell it."""


def objects_of(arrivals: Arrivals) -> list[Named]:
    """The objects that a batch names, each once. They must be on this node before the batch is
    applied. A refused arrival names nothing.
    """
    objects: dict[str, Named] = {}
    for arrival in arrivals:
        if isinstance(arrival, tuple) or arrival.error is not None:
            continue  # a plain fact names nothing
        if isinstance(arrival.body, FileShare) and arrival.body.content is None:
            sha = arrival.body.sha256.hex()
            objects.setdefault(sha, Named(sha, arrival.body.size))
        elif isinstance(arrival.body, Fact):
            for sha in (digest.hex() for digest in arrival.body.objects):
                objects.setdefault(sha, Named(sha, None))
    return list(objects.values())
