"""A store against a dict: whatever is handed in, in whatever order, both give the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, DestinationRow, PushedEnvelope
from holdfast.rules.limits import DAY_MS
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    DEDUPE_MS,
    EVE,
    KEEP_MS,
    NOW,
    OWNER,
    TOPIC,
    accept,
    arriving,
    feed,
    member,
)


class Tried(NamedTuple):
    """One envelope of a batch: small numbers, so that everything collides."""

    mesh: int
    id: int
    content: int
    kind: str
    ref: str
    who: tuple[bytes, str]
    epoch: int


class NewEpoch(NamedTuple):
    mesh: int


class Sweep(NamedTuple):
    days: int


tried = st.builds(
    Tried,
    mesh=st.integers(0, 2),
    id=st.integers(0, 9),
    content=st.integers(0, 1),
    kind=st.sampled_from(["change", "topic", "topic"]),
    ref=st.sampled_from([TOPIC, TOPIC, TOPIC, "undeclared"]),
    who=st.sampled_from([(ANA, "ana"), (ANA, "ana"), (BOB, "bob"), (BOB, "ana"), (EVE, "eve")]),
    epoch=st.sampled_from([0, 0, 0, 1, 2]),
)
steps = st.lists(
    st.one_of(
        st.lists(tried, min_size=1, max_size=12),
        st.lists(tried, min_size=1, max_size=12),
        st.builds(NewEpoch, st.integers(0, 1)),
        st.builds(Sweep, st.integers(1, 40)),
    ),
    max_size=8,
)


class Held(NamedTuple):
    fingerprint: bytes
    epoch: int
    seq: int
    at: int
    kind: str
    history: bool


class Model:
    """What a mesh should be."""

    def __init__(self) -> None:
        self.epoch, self.seq = 1, 0
        self.held: dict[bytes, Held] = {}

    def judge(self, one: PushedEnvelope, now_ms: int) -> tuple[object, ...]:
        """Verdict, epoch, epoch and seq of the message, when it was first seen, history."""
        refused = (self.epoch, 0, 0, 0, True)
        if one.sender == EVE:
            return (AcceptVerdict.NOT_A_MEMBER, *refused)
        if one.origin != {ANA: "ana", BOB: "bob"}[one.sender]:
            return (AcceptVerdict.NOT_GRANTED, *refused)
        if (known := self.held.get(one.id)) is not None:
            same = known.fingerprint == one.fingerprint
            verdict = AcceptVerdict.DUPLICATE if same else AcceptVerdict.REUSED
            return verdict, self.epoch, known.epoch, known.seq, known.at, known.history
        if one.epoch not in (0, self.epoch):
            return (AcceptVerdict.EPOCH_MISMATCH, *refused)
        if one.kind == "topic" and one.ref != TOPIC:
            return (AcceptVerdict.UNKNOWN_DESTINATION, *refused)
        self.seq += 1
        self.held[one.id] = Held(one.fingerprint, self.epoch, self.seq, now_ms, one.kind, True)
        return AcceptVerdict.CREATED, self.epoch, self.epoch, self.seq, now_ms, True

    def sweep(self, now_ms: int) -> None:
        for id, held in list(self.held.items()):
            if held.kind == "topic" and held.at + KEEP_MS <= now_ms:
                held = self.held[id] = held._replace(history=False)
            if not held.history and held.at + DEDUPE_MS + DAY_MS <= now_ms:
                del self.held[id]

    def seen(self) -> list[int]:
        return sorted(held.seq for held in self.held.values() if held.history)


def told(answer: AcceptResult) -> tuple[object, ...]:
    return (
        answer.verdict,
        answer.epoch,
        answer.message_epoch,
        answer.seq,
        answer.first_seen_at,
        answer.history_available,
    )


async def run(store: BrokerStore, slugs: list[str], story: list[object]) -> None:
    models: dict[str, Model] = {}
    for slug in slugs[:2]:
        models[slug] = Model()
        await store.mesh_register(slug, slug, OWNER, "olga", f"server-{slug}", NOW)
        await store.member_put(slug, member(ANA, "ana"))
        await store.member_put(slug, member(BOB, "bob"))
        await store.destination_put(slug, DestinationRow(kind="topic", ref=TOPIC, made_at=NOW))
        await store.subscribe(slug, OWNER, TOPIC)
    now = NOW
    for step in story:
        now += 1
        if isinstance(step, NewEpoch):
            await store.new_epoch(slugs[step.mesh], "a test", now)
            models[slugs[step.mesh]].epoch += 1
        elif isinstance(step, Sweep):
            now += step.days * DAY_MS
            await store.sweep(now, 1000)
            for model in models.values():
                model.sweep(now)
        elif isinstance(step, list):
            batch = [_arriving(slugs, one) for one in step]
            expected = [
                models[one.mesh].judge(one, now)
                if one.mesh in models
                else (AcceptVerdict.UNKNOWN_MESH, 0, 0, 0, 0, True)
                for one in batch
            ]
            assert [told(one) for one in await accept(store, *batch, now_ms=now)] == expected
    for slug, model in models.items():
        page = await feed(store, OWNER, mesh=slug, own=True)
        assert [row.seq for row in page.rows] == model.seen()
        assert (page.last, page.epoch) == (model.seq, model.epoch)
    assert await store.orphans(10) == []
    for slug in models:
        await store.mesh_remove(slug)


def _arriving(slugs: list[str], one: Tried) -> PushedEnvelope:
    key, origin = one.who
    return arriving(
        one.id,
        one.kind,
        "" if one.kind == "change" else one.ref,
        mesh=slugs[one.mesh],
        fingerprint=bytes([one.content]) * 32,
        sender=key,
        origin=origin,
        epoch=one.epoch,
    )


def test_D2_a_store_answers_as_a_dict_would(store: BrokerStore, runner: asyncio.Runner) -> None:
    numbers = count()

    @settings(max_examples=40)
    @given(story=steps)
    def check(story: list[object]) -> None:
        number = next(numbers)
        runner.run(run(store, [f"m{number}", f"n{number}", "nowhere"], story))

    run_all: Callable[[], None] = check
    run_all()
