"""One transaction for many envelopes, one answer for each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from holdfast.rules.broker_rows import (
    AcceptResult,
    AcceptVerdict,
    DestinationRow,
    MemberRow,
    PushedEnvelope,
)
from holdfast.rules.limits import QUICK_COMMITS
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    EVE,
    NOW,
    OWNER,
    TEAM,
    StoreMaker,
    accept,
    arriving,
    dm,
    feed,
    member,
    queued,
    seqs,
    topic,
    verdicts,
    with_team,
)
from support.envelopes import make_id


async def test_D2_the_first_is_created_and_the_same_again_is_a_duplicate(
    store: BrokerStore,
) -> None:
    await with_team(store)
    (first,) = await accept(store, topic(1))
    assert first == AcceptResult(
        verdict=AcceptVerdict.CREATED,
        epoch=1,
        message_epoch=1,
        seq=1,
        broker_id=make_id(1, NOW),
        first_seen_at=NOW,
    )
    (again,) = await accept(store, topic(1, broker_id=make_id(99)), now_ms=NOW + 5)
    assert again == AcceptResult(
        verdict=AcceptVerdict.DUPLICATE,
        epoch=1,
        message_epoch=1,
        seq=1,
        broker_id=make_id(1, NOW),
        first_seen_at=NOW,
    )
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert mesh.seq == 1


async def test_D2_a_store_that_may_hold_up_the_loop_accepts_as_any_other(
    store: BrokerStore,
) -> None:
    await with_team(store)
    store.may_hold_up_the_loop(lambda: True)
    for number in range(1, 2 * QUICK_COMMITS):
        answers = await accept(store, topic(number), topic(number))
        assert [one.seq for one in answers] == [number, number]
        assert verdicts(answers) == ["created", "duplicate"]
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert mesh.seq == 2 * QUICK_COMMITS - 1


async def test_D2_another_request_under_the_same_id_is_told_the_first_fingerprint(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await accept(store, topic(1))
    (answer,) = await accept(store, topic(1, fingerprint=b"x" * 32))
    assert answer.verdict is AcceptVerdict.REUSED
    assert answer.fingerprint == topic(1).fingerprint
    assert (answer.epoch, answer.message_epoch, answer.seq) == (1, 1, 1)


async def test_D2_ids_that_repeat_within_a_batch_are_judged_in_order(store: BrokerStore) -> None:
    await with_team(store)
    answers = await accept(
        store,
        topic(1),
        topic(2),
        topic(1),
        topic(2, fingerprint=b"x" * 32),
        topic(3),
        topic(1),
    )
    assert verdicts(answers) == [
        "created",
        "created",
        "duplicate",
        "idempotency_key_reused",
        "created",
        "duplicate",
    ]
    assert [answer.seq for answer in answers] == [1, 2, 1, 2, 3, 1]
    assert answers[3].fingerprint == topic(2).fingerprint
    assert [answer.broker_id for answer in answers[:3]] == [
        make_id(1, NOW),
        make_id(2, NOW),
        make_id(1, NOW),
    ]


async def test_D2_several_meshes_in_one_batch_count_by_themselves(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("other", "Other", OWNER, "olga", "server-2", NOW)
    await store.member_put("other", member(ANA, "ana"))
    answers = await accept(
        store,
        arriving(1),
        arriving(2, mesh="other"),
        arriving(3),
        arriving(1, mesh="other"),
        arriving(4, mesh="nowhere"),
    )
    assert verdicts(answers) == ["created"] * 4 + ["unknown_mesh"]
    assert [answer.seq for answer in answers] == [1, 1, 2, 2, 0]
    assert seqs(await feed(store, OWNER, mesh="other")) == [1, 2]


async def test_D2_a_failure_between_dedupe_and_message_leaves_neither(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, queued(1))
    # A message without its bytes is what only the table of the messages refuses.
    bad = queued(3, raw=cast(bytes, None))
    with pytest.raises(Exception, match=r"."):
        await accept(store, queued(2), bad, queued(4))
    asked = [(make_id(n), queued(n).fingerprint) for n in (2, 3, 4)]
    assert await store.known(TEAM, asked) == [None, None, None]
    assert await store.orphans(10) == []
    assert (await store.counts())["messages"] == 1
    assert (await store.counts())["dedupe"] == 1
    (answer,) = await accept(store, queued(2))
    assert (answer.verdict, answer.seq) == (AcceptVerdict.CREATED, 2)
    assert [count.ready for count in await store.queue_counts(TEAM)] == [2]


async def test_D2_what_was_accepted_is_there_after_the_store_was_opened_anew(
    make_store: StoreMaker, tmp_path: Path
) -> None:
    async with make_store(tmp_path) as store:
        await with_team(store)
        await accept(store, *(topic(n) for n in range(100)))
    async with make_store(tmp_path) as store:
        answers = await accept(store, *(topic(n) for n in range(101)))
        assert verdicts(answers) == ["duplicate"] * 100 + ["created"]
        assert answers[-1].seq == 101
        assert answers[-1].epoch == 1


async def test_D4_a_refused_request_consumes_no_key(store: BrokerStore) -> None:
    await with_team(store)
    tried: list[PushedEnvelope] = [
        arriving(1, mesh="nowhere"),
        arriving(2, sender=EVE),
        arriving(3, origin="bob"),
        arriving(4, epoch=7),
        arriving(5, "topic", "undeclared"),
        arriving(6, "queue", "news"),
        dm(7, EVE),
        arriving(8, "topic", "undeclared", sender=EVE, epoch=7),
        arriving(9, "topic", "undeclared", epoch=7),
    ]
    assert verdicts(await accept(store, *tried)) == [
        "unknown_mesh",
        "not_a_member",
        "not_granted",
        "epoch_mismatch",
        "unknown_destination",
        "unknown_destination",
        "unknown_destination",
        "not_a_member",
        "epoch_mismatch",
    ]
    counts = await store.counts()
    assert (counts["messages"], counts["dedupe"]) == (0, 0)
    corrected = [arriving(n, fingerprint=bytes([n]) * 32) for n in range(1, 8)]
    answers = await accept(store, *corrected)
    assert verdicts(answers) == ["created"] * 7
    assert [answer.seq for answer in answers] == [1, 2, 3, 4, 5, 6, 7]


async def test_D4_a_refused_one_and_its_correction_may_come_in_one_batch(
    store: BrokerStore,
) -> None:
    await with_team(store)
    answers = await accept(store, arriving(1, "topic", "undeclared"), topic(1), topic(1))
    assert verdicts(answers) == ["unknown_destination", "created", "duplicate"]
    assert [answer.seq for answer in answers] == [0, 1, 1]


async def test_D4_known_answers_for_what_was_accepted_and_for_nothing_else(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await accept(store, topic(1), topic(2))
    found = await store.known(
        TEAM,
        [
            (make_id(2), topic(2).fingerprint),
            (make_id(3), topic(3).fingerprint),
            (make_id(1), b"x" * 32),
            (make_id(2), topic(2).fingerprint),
        ],
    )
    assert [None if one is None else one.verdict.value for one in found] == [
        "duplicate",
        None,
        "idempotency_key_reused",
        "duplicate",
    ]
    assert found[0] is not None
    assert found[0].seq == 2
    assert found[0].epoch == 1
    assert found[2] is not None
    assert found[2].fingerprint == topic(1).fingerprint
    assert await store.known("nowhere", [(make_id(2), b"")]) == [None]
    assert await store.known(TEAM, []) == []


async def test_D4_a_duplicate_is_answered_before_epoch_and_destination_are_looked_at(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await accept(store, topic(1), dm(2))
    await store.destination_drop(TEAM, "topic", "news")
    await store.member_remove(TEAM, BOB, NOW)
    await store.new_epoch(TEAM, "a test", NOW)
    answers = await accept(store, topic(1, epoch=1), dm(2, epoch=1), arriving(3, epoch=1))
    assert verdicts(answers) == ["duplicate", "duplicate", "epoch_mismatch"]
    assert [(one.epoch, one.message_epoch) for one in answers] == [(2, 1), (2, 1), (2, 0)]


@pytest.mark.parametrize(
    ("grants", "envelope", "verdict"),
    [
        (("read", "send"), arriving(1), "not_granted"),
        (("read", "write"), topic(1), "not_granted"),
        (("write",), arriving(1), "created"),
        (("send",), topic(1), "created"),
        (("write",), arriving(1, origin="zoe"), "not_granted"),
        (("write", "relay"), arriving(1, origin="zoe"), "created"),
        (("send",), topic(1, origin="zoe"), "not_granted"),
        (("send", "relay"), topic(1, origin="zoe"), "created"),
    ],
)
async def test_D15_grants_say_who_may_hand_in_what(
    store: BrokerStore, grants: tuple[str, ...], envelope: PushedEnvelope, verdict: str
) -> None:
    await with_team(store)
    await store.member_put(TEAM, member(ANA, "ana", *grants))
    assert verdicts(await accept(store, envelope)) == [verdict]


async def test_D15_a_removed_member_is_a_stranger_at_once_and_may_come_back(
    store: BrokerStore,
) -> None:
    await with_team(store)
    assert verdicts(await accept(store, arriving(1))) == ["created"]
    assert await store.member_remove(TEAM, ANA, NOW + 1)
    assert not await store.member_remove(TEAM, ANA, NOW + 2)
    assert await store.member_get(TEAM, ANA) is None
    # Also for what it handed in before: a stranger learns nothing.
    assert verdicts(await accept(store, arriving(1), arriving(2))) == ["not_a_member"] * 2
    await store.member_put(
        TEAM, MemberRow(key=ANA, name="ana", grants=frozenset({"write"}), added_at=NOW)
    )
    assert verdicts(await accept(store, arriving(1), arriving(2))) == ["duplicate", "created"]


async def test_D6_seqs_have_no_gaps_and_show_in_order_while_many_hand_in(
    store: BrokerStore,
) -> None:
    await with_team(store)
    seen: list[int] = []
    done = False

    async def hand_in(number: int) -> list[AcceptResult]:
        answers = []
        for turn in range(5):
            first = number * 1000 + turn * 10
            answers += await accept(
                store,
                *(arriving(first + n) for n in range(7)),
                arriving(first + 8, "topic", "undeclared"),
                arriving(first),
            )
        return answers

    async def follow() -> None:
        after = 0
        while not done or after < 8 * 5 * 7:
            page = await feed(store, BOB, after)
            # Nothing that is missing here may come later: the page covers all up to `to`.
            assert seqs(page) == list(range(after + 1, page.to + 1))
            seen.extend(seqs(page))
            after = page.to
            await asyncio.sleep(0)

    async def write() -> list[list[AcceptResult]]:
        nonlocal done
        answers = await asyncio.gather(*(hand_in(number) for number in range(8)))
        done = True
        return answers

    answers, _ = await asyncio.gather(write(), follow())
    created = [one.seq for each in answers for one in each if one.verdict is AcceptVerdict.CREATED]
    assert sorted(created) == list(range(1, 8 * 5 * 7 + 1))
    assert seen == list(range(1, 8 * 5 * 7 + 1))
    for each in answers:
        own = [one.seq for one in each if one.verdict is AcceptVerdict.CREATED]
        assert own == sorted(own)


async def test_D6_the_same_ids_handed_in_by_many_at_once_are_created_once(
    store: BrokerStore,
) -> None:
    await with_team(store)
    batch = [topic(n) for n in range(30)]
    tries = await asyncio.gather(
        *(accept(store, *(batch if turn % 2 else batch[::-1])) for turn in range(6))
    )
    all_verdicts = [one.verdict for each in tries for one in each]
    assert all_verdicts.count(AcceptVerdict.CREATED) == 30
    assert all_verdicts.count(AcceptVerdict.DUPLICATE) == 150
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    assert mesh.seq == 30
    assert await store.orphans(10) == []


async def test_D5_a_batch_may_declare_nothing_and_be_empty(store: BrokerStore) -> None:
    await with_team(store)
    assert await accept(store) == []
    await store.destination_put(TEAM, DestinationRow(kind="topic", ref="later", made_at=NOW))
    assert verdicts(await accept(store, arriving(1, "topic", "later"))) == ["created"]


async def test_D14_whoever_listens_is_told_how_far_a_mesh_has_grown(store: BrokerStore) -> None:
    await with_team(store)
    told: list[tuple[str, int]] = []
    heard = asyncio.Event()

    def listen(mesh: str, seq: int) -> None:
        told.append((mesh, seq))
        heard.set()

    store.on_news(listen)
    await accept(store, arriving(1), arriving(2), arriving(3, sender=EVE))
    await asyncio.wait_for(heard.wait(), 10)
    assert {mesh for mesh, _ in told} == {TEAM}
    assert {seq for _, seq in told} <= {0, 2}


async def test_D14_what_is_written_here_is_told_here_whether_or_not_news_are_wanted(
    store: BrokerStore,
) -> None:
    await with_team(store)
    heard = asyncio.Event()
    store.on_news(lambda mesh, seq: heard.set())
    store.wants_only_some_news()
    for number, on in enumerate((False, True, False), 1):
        store.wants_news(TEAM, on=on)
        heard.clear()
        await accept(store, arriving(number))
        await asyncio.wait_for(heard.wait(), 10)
