"""Random parcels, honest and hostile, to a real bus and to the protocol written a second time."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.protocol.bus_frames import FrameKind, Stream, WelcomeFrame
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from model import bus_model
from model.bus_model import BusModel, Head, Refusal
from support.bus_pairs import MemoryLink, bound, seed_of

NAMES = ("ana", "eve")
KEYS = {name: SigningKey(seed_of(name)) for name in NAMES}
LIFE = b"l" * 16
NUMBERS = (0, 1 << 40, (1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
MESSAGE = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "sequence": st.sampled_from(("next",) * 8 + ("same", "before", *NUMBERS)),
        "nonce": st.sampled_from(("fresh",) * 5 + ("last",)),
        "kind": st.sampled_from((1, 1, 1, 2, 2, 3, 4, 5)),
        "durable": st.booleans(),
        "harm": st.sampled_from(("",) * 12 + ("garbage", "other id")),
    }
)
HARMS = ("",) * 9 + ("signed by another", "flip", "cut", "more", "other life", "to eve")
STEP = st.one_of(
    st.fixed_dictionaries(
        {
            "by": st.sampled_from(NAMES),
            "messages": st.lists(MESSAGE, min_size=1, max_size=4),
            "to": st.sampled_from(("direct", "direct", "topic", "anycast")),
            "mode": st.sampled_from((bus_model.EACH, bus_model.BATCH)),
            "harm": st.sampled_from(HARMS),
            "at": st.integers(0, 1 << 16),
        }
    ),
    st.integers(0, 9),  # a parcel that came before, again
    st.just("restart"),
)


def _id(number: int, kind: int = 0, durable: bool = False) -> bytes:
    """An id names one message: those of two kinds are never the same."""
    return bytes(6) + b"\x70" + bytes([number]) + b"\x80" + bytes([kind, durable]) + bytes(5)


class Receiver:
    """A real bus that gets bytes, and the model beside it."""

    def __init__(self, store: MeshStore) -> None:
        self._store = store
        self._links: dict[str, MemoryLink] = {}
        self._came: list[tuple[str, bytes]] = []
        self._sequence = self._nonce = 0

    async def start(self) -> None:
        self.bus = await bound("ben", *NAMES, store=self._store)
        self._links.clear()

    async def stop(self, *, last: bool = False) -> None:
        close, self._store.close = self._store.close, _nothing  # type: ignore[method-assign]
        await self.bus.close()
        self._store.close = close  # type: ignore[method-assign]
        if last:
            await close()

    async def link(self, name: str) -> MemoryLink:
        """A link to a peer that is nothing but bytes."""
        link = self._links.get(name)
        if link is None or not link.is_up:
            key, welcome = bytes(KEYS[name].verify_key), WelcomeFrame(name=name, incarnation=LIFE)
            link = self._links[name] = MemoryLink(key, name, welcome, dialled=False)
            link.other = MemoryLink(self.bus.key, "ben", welcome, dialled=True)
            link.other.other, link.other.bus, link.bus = link, self.bus, self.bus
            link.drops = lambda kind: True
            self.bus.router.link_up(link)
            while self.bus.router.lane_of(name).link is not link:
                await asyncio.wait(
                    list(self.bus.router.context._tasks), return_when=asyncio.FIRST_COMPLETED
                )
        return link

    async def hand_over(self, name: str, raw: bytes) -> tuple[list[str], list[tuple[int, str]]]:
        """The faults of the link, and the numbers that were refused."""
        link = await self.link(name)
        tasks = self.bus.router.context._tasks
        link.faults.clear()
        sent = len(link.sent)
        link.other.credit[Stream.NEXT] -= len(raw)  # what its sender would have paid
        self.bus.router.frame(link, FrameKind.PARCEL, Stream.NEXT, raw)
        self.bus.router.frames_end(link)
        intake = self.bus.router.intakes.get(name)
        while link.is_up and intake is not None and intake.is_busy:
            await asyncio.wait(list(tasks), return_when=asyncio.FIRST_COMPLETED)
        acks: list[Any] = [
            msgspec.msgpack.decode(body)
            for kind, _, body in link.sent[sent:]
            if kind is FrameKind.ACK
        ]
        refused = [(number, code) for _, listed in acks for number, code, _ in listed]
        faults = [error.code for error in link.faults if error.code != "message_refused"]
        return faults, refused

    def parcel(self, step: dict[str, Any]) -> tuple[str, bytes]:
        name, harm, at = step["by"], step["harm"], step["at"]
        life = bytes(16) if harm == "other life" else self.bus.router.context.incarnation
        key = bytes(KEYS["eve"].verify_key) if harm == "to eve" else self.bus.key
        to = bus_model.direct(key, life)
        if step["to"] != "direct":
            kind = bus_model.TOPIC if step["to"] == "topic" else bus_model.ANYCAST
            to = bytes([kind]) + (b"news" if at % 3 else b"other")
        heads, payloads = [], []
        for one in step["messages"]:
            kind = one["kind"]
            payload = bus_model.payload(
                _id(one["id"], kind, one["durable"]),
                kind,
                topic="" if kind in (bus_model.REPLY, bus_model.CANCEL) else "news",
                body=b"b%d" % one["id"],
                about=_id(9) if kind in (bus_model.REPLY, bus_model.CANCEL) else b"",
                durable=one["durable"],
            )
            payload = b"\x01 no message" if one["harm"] == "garbage" else payload
            digest = bus_model.digest_of(payload)
            digest = bytes(32) if one["harm"] == "other id" else digest
            heads.append(Head(self._nonce_of(one), self._sequence_of(one), digest))
            payloads.append(payload)
        signer = KEYS[NAMES[1 - NAMES.index(name)] if harm == "signed by another" else name]
        raw = bytearray(bus_model.write_parcel(signer, to, heads, payloads, step["mode"]))
        if harm == "flip":
            raw[at % len(raw)] ^= 1 << at % 8
        elif harm == "cut":
            del raw[-1 - at % len(raw) :]
        elif harm == "more":
            raw += b"."
        return name, bytes(raw)

    def _nonce_of(self, one: dict[str, Any]) -> bytes:
        self._nonce += one["nonce"] == "fresh"
        return self._nonce.to_bytes(24)

    def _sequence_of(self, one: dict[str, Any]) -> int:
        wanted: int | str = one["sequence"]
        if isinstance(wanted, int):
            return wanted
        self._sequence += wanted == "next"
        return max(0, self._sequence - (wanted == "before"))

    async def step(self, step: Any, model: BusModel) -> None:
        if step == "restart":
            await self.stop()
            await self.start()
        elif isinstance(step, int):
            if self._came:
                await self._compare(*self._came[step % len(self._came)], model)
        else:
            name, raw = self.parcel(step)
            self._came.append((name, raw))
            await self._compare(name, raw, model)

    async def _compare(self, name: str, raw: bytes, model: BusModel) -> None:
        faults, refused = await self.hand_over(name, raw)
        life, key = self.bus.router.context.incarnation, bytes(KEYS[name].verify_key)
        wanted = model.take(life, key, raw)
        if isinstance(wanted, Refusal):
            assert len(faults) == 1
            assert faults[0] in wanted.codes
        else:
            assert (faults, sorted(refused)) == ([], sorted(wanted))
        for other in KEYS.values():
            seen = await self._store.last_seq(bytes(other.verify_key))
            assert (seen or 0) == model.marks.get(bytes(other.verify_key), 0)
        kept = await self._store.pending_inbox(0, 1000)
        assert [(row.sender, row.message.id, row.message.body) for row in kept] == model.inbox


async def _nothing() -> None:
    """The store outlives its bus."""


async def _sqlite(folder: Path) -> MeshStore:
    return await SqliteMeshStore.open(folder / "bus.db")


async def _memory(folder: Path) -> MeshStore:
    return MemoryMeshStore()


@pytest.mark.parametrize("make", [_memory, _sqlite])
def test_B1_B3_B4_a_bus_takes_of_any_parcels_what_the_protocol_says(
    make: Callable[[Path], Any],
) -> None:
    @settings(max_examples=40 if make is _memory else 10, deadline=None)
    @given(st.lists(STEP, min_size=4, max_size=10))
    def examples(steps: list[Any]) -> None:
        async def story(folder: Path) -> None:
            receiver = Receiver(await make(folder))
            await receiver.start()
            model = BusModel(receiver.bus.key)
            for step in steps:
                await receiver.step(step, model)
            await receiver.stop(last=True)

        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(story(Path(folder)))

    examples()
