"""Reads along on every connection: which numbers peers give, and what an attacker could record.

A peer must never sign two different messages with one number, not across restarts, not after its
store went back in time. The tap knows every number that an honest peer has ever written to a
stream, so it notices at once. Within one connection numbers only grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from holdfast.protocol.bus_frames import FRAME_HEAD, FrameKind
from holdfast.rules.bus.signed_envelope import SignedParcel, read_parcel
from holdfast.rules.errors import HoldfastError
from holdfast.simulate.bus.stream_end import StreamEnd

RECORDED_MAX: Final = 200
"""Parcels that the attacker remembers."""


class RecordedParcel(NamedTuple):
    """A parcel as it travelled."""

    source: str
    target: str
    stream: int
    body: bytes


class ParcelTap:
    """A tap on all streams of a network."""

    def __init__(self, liars: Collection[str], broken: Callable[[str], None]) -> None:
        """`liars` are machines whose words prove nothing about the bus."""
        self.recorded: deque[RecordedParcel] = deque(maxlen=RECORDED_MAX)
        self.messages = 0
        """How many messages honest peers have signed."""
        self.injected: dict[bytes, None] = {}
        """Parcels that the attacker has put into a stream: nobody has signed them now."""
        self._liars, self._broken = liars, broken
        self._forgiven: dict[bytes, None] = {}
        self._unread: dict[int, bytearray] = {}
        self._last_number: dict[int, int] = {}
        self._used: dict[tuple[bytes, int], bytes] = {}
        """By key and number: what was signed with it."""

    def opened(self, dialler: StreamEnd, listener: StreamEnd) -> None:
        """Nothing is said yet."""

    def written(self, source: StreamEnd, data: bytes) -> None:
        unread = self._unread.setdefault(source.number, bytearray())
        unread += data
        while len(unread) >= FRAME_HEAD.size:
            length, kind, stream = FRAME_HEAD.unpack_from(unread)
            if len(unread) < 4 + length:
                return
            body = bytes(unread[FRAME_HEAD.size : 4 + length])
            del unread[: 4 + length]
            if kind == FrameKind.PARCEL:
                self._parcel(source, stream, body)

    def ended(self, source: StreamEnd) -> None:
        self._unread.pop(source.number, None)
        self._last_number.pop(source.number, None)

    def forgive(self, key: bytes) -> None:
        """The whole machine of this key was set back, with all that it knew about its numbers. Only
        its receivers can tell it, so it may use a number again that none of them has seen.
        """
        self._forgiven[key] = None

    def _parcel(self, source: StreamEnd, stream: int, body: bytes) -> None:
        machine, target = source.way
        if machine in self._liars or body in self.injected:
            return
        self.recorded.append(RecordedParcel(machine, target, stream, body))
        try:
            parcel = read_parcel(body)
        except HoldfastError as error:
            self._broken(f"{machine} wrote a parcel that cannot be read: {error.message}")
            return
        self._check_numbers(source, machine, parcel)

    def _check_numbers(self, source: StreamEnd, machine: str, parcel: SignedParcel) -> None:
        to = parcel.recipient.encode()
        for head in parcel.each_head():
            self.messages += 1
            last = self._last_number.get(source.number, 0)
            if head.sequence <= last:
                self._broken(f"{machine} wrote number {head.sequence} after {last} on one link")
            self._last_number[source.number] = head.sequence
            signed = to + head.nonce + head.payload_id
            before = self._used.setdefault((parcel.sender, head.sequence), signed)
            if before != signed and parcel.sender not in self._forgiven:
                self._broken(f"{machine} used number {head.sequence} for two messages")
