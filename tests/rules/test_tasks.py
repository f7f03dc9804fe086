"""Tasks: any order of delivery gives the same task, because a task is the fold of a set."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.order import Version, order_key
from holdfast.rules.tasks import TERMINAL, Judged, Task, TaskEvent, TaskStatus, Turn, fold, step
from support.envelopes import make_id


def turn(kind: str, lamport: int, peer: str, generation: int = 0, number: int = 0) -> Turn:
    version = Version(lamport, peer, make_id(number or lamport))
    return Turn(version, kind, generation, 1000 + lamport, f"by {peer}" if kind == "create" else "")


CREATE = turn("create", 1, "ana")


def run(*turns: Turn) -> tuple[Task, list[str]]:
    task, history = fold(turns)
    return task, [judged.event.value for judged in history]


def holder(task: Task) -> str | None:
    return task.holder.peer if task.holder and task.status is TaskStatus.CLAIMED else None


# --- the branches ---------------------------------------------------------------------------------


def test_S10_a_claim_on_an_open_task_takes_it() -> None:
    task, events = run(CREATE, turn("claim", 2, "bob"))
    assert events == ["created", "claimed"]
    assert (task.status, holder(task), task.claimed_at) == (TaskStatus.CLAIMED, "bob", 1002)


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_S10_a_claim_on_an_ended_task_is_rejected(end: str) -> None:
    task, history = fold([CREATE, turn(end, 2, "bob"), turn("claim", 3, "cyd")])
    assert [judged.event for judged in history][-1] is TaskEvent.REJECTED_TERMINAL
    assert history[-1].against == Version(2, "bob", make_id(2))
    assert task.status in TERMINAL


def test_S10_the_same_peer_may_claim_again() -> None:
    task, events = run(CREATE, turn("claim", 2, "bob"), turn("claim", 3, "bob"))
    assert events == ["created", "claimed", "renewed"]
    assert task.holder == Version(2, "bob", make_id(2)), "the first claim goes on holding"


def test_S10_of_two_claims_the_lower_stamp_wins() -> None:
    task, history = fold([CREATE, turn("claim", 5, "ana"), turn("claim", 2, "zoe")])
    assert holder(task) == "zoe"
    assert history[-1].event is TaskEvent.SUPERSEDED
    assert history[-1].against == Version(2, "zoe", make_id(2))


def test_S10_at_one_lamport_the_lower_peer_by_bytes_wins() -> None:
    claims = [turn("claim", 2, peer, number=9) for peer in ("\U00010000", "\uffff", "é")]
    task, events = run(CREATE, *claims)
    assert holder(task) == "é"
    assert events == ["created", "claimed", "superseded", "superseded"]


# --- release --------------------------------------------------------------------------------------


def test_S10_a_release_opens_the_next_generation() -> None:
    task, events = run(
        CREATE,
        turn("claim", 2, "bob"),
        turn("release", 3, "bob"),
        turn("claim", 4, "cyd", generation=1),
    )
    assert events == ["created", "claimed", "released", "claimed"]
    assert (task.generation, holder(task)) == (1, "cyd")


def test_S10_a_claim_of_an_earlier_generation_has_lost_for_good() -> None:
    """Its peer has been told so, and does not get a task that it no longer expects."""
    task, history = fold(
        [CREATE, turn("claim", 2, "bob"), turn("release", 3, "bob"), turn("claim", 4, "cyd")]
    )
    assert task.status is TaskStatus.OPEN
    assert history[-1].event is TaskEvent.SUPERSEDED
    assert history[-1].against == Version(2, "bob", make_id(2))


def test_S10_a_claim_of_a_generation_that_has_not_come_yet_waits_for_it() -> None:
    early = turn("claim", 9, "cyd", generation=1)
    task, history = fold([CREATE, early])
    assert task.status is TaskStatus.OPEN
    assert history[-1] == Judged(early, TaskEvent.SUPERSEDED, None), (
        "against nobody that is known yet"
    )
    task, events = run(CREATE, early, turn("claim", 2, "bob"), turn("release", 3, "bob"))
    assert holder(task) == "cyd"
    assert events == ["created", "claimed", "released", "claimed"]


@pytest.mark.parametrize(
    "turns",
    [
        [turn("release", 2, "bob")],
        [turn("claim", 2, "bob"), turn("release", 3, "cyd")],
        [turn("claim", 2, "bob"), turn("release", 3, "bob", generation=1)],
        [turn("claim", 2, "bob"), turn("release", 3, "bob"), turn("release", 4, "bob")],
    ],
)
def test_S10_a_release_by_one_who_does_not_hold_the_task_is_ignored(turns: list[Turn]) -> None:
    _, events = run(CREATE, *turns)
    assert events[-1] == "ignored"


# --- the end --------------------------------------------------------------------------------------


def test_S10_a_terminal_state_beats_any_claim() -> None:
    task, events = run(CREATE, turn("claim", 5, "bob"), turn("cancel", 2, "cyd"))
    assert task.status is TaskStatus.CANCELLED
    assert events == ["created", "cancelled", "rejected_terminal"]


def test_S10_of_two_ends_the_lower_stamp_holds() -> None:
    ends = [turn("complete", 4, "bob"), turn("cancel", 3, "cyd")]
    task, events = run(CREATE, turn("claim", 2, "bob"), *ends)
    assert task.status is TaskStatus.CANCELLED
    assert (task.ended, task.ended_at) == (Version(3, "cyd", make_id(3)), 1003)
    assert events[-1] == "rejected_terminal"


def test_S10_who_held_the_task_when_it_ended_stays_on_record() -> None:
    task, _ = run(CREATE, turn("claim", 2, "bob"), turn("complete", 3, "bob"))
    assert task.holder == Version(2, "bob", make_id(2))
    assert task.claimed_at == 1002


def test_S10_a_task_that_ended_while_it_was_open_was_held_by_nobody() -> None:
    task, _ = run(
        CREATE, turn("claim", 2, "bob"), turn("release", 3, "bob"), turn("cancel", 4, "ana")
    )
    assert task.status is TaskStatus.CANCELLED
    assert task.holder is None


def test_S10_turns_may_come_before_their_task_is_known() -> None:
    task, events = run(turn("claim", 5, "bob"))
    assert (task.known, task.title, events) == (False, "", ["claimed"])
    task, _ = run(turn("claim", 5, "bob"), CREATE)
    assert (task.known, task.title, task.created_by) == (True, "by ana", "ana")
    assert task.created_at == 1001


def test_S10_of_two_creations_the_lower_stamp_names_the_task() -> None:
    task, events = run(turn("create", 4, "bob"), CREATE)
    assert task.created_by == "ana"
    assert events == ["created", "ignored"]


# --- any order ------------------------------------------------------------------------------------

_turns = st.builds(
    turn,
    st.sampled_from(["claim", "claim", "claim", "release", "release", "complete", "cancel"]),
    st.integers(2, 9),
    st.sampled_from(["ana", "bob", "é", "\uffff", "\U00010000"]),
    st.integers(0, 2),
    st.integers(1, 3),
)
_sets = st.lists(_turns, max_size=8, unique_by=lambda each: each.version).map(
    lambda turns: [CREATE, *turns]
)


@given(_sets, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_S10_any_order_of_turns_gives_the_same_task_and_history(
    turns: list[Turn], random: object
) -> None:
    expected = fold(turns)
    shuffled = list(turns)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fold(shuffled) == expected


@given(_sets)
@settings(max_examples=300)
def test_S10_the_fold_keeps_its_own_rules(turns: list[Turn]) -> None:
    task, history = fold(turns)
    assert [judged.turn for judged in history] == sorted(
        turns, key=lambda each: order_key(each.version)
    )
    ends = [
        judged for judged in history if judged.event in (TaskEvent.COMPLETED, TaskEvent.CANCELLED)
    ]
    assert len(ends) == (task.status in TERMINAL)
    if ends:
        lowest = min(
            (each for each in turns if each.kind in ("complete", "cancel")),
            key=lambda each: order_key(each.version),
        )
        assert task.ended == lowest.version, "the lowest of all ends"
    claimed = {j.turn.generation: j.turn for j in history if j.event is TaskEvent.CLAIMED}
    released = {j.turn.generation: j.turn for j in history if j.event is TaskEvent.RELEASED}
    # One generation after the other, each held by one peer and released by that peer.
    assert sorted(released) == list(range(task.generation))
    assert len(claimed) == sum(judged.event is TaskEvent.CLAIMED for judged in history)
    for generation, release in released.items():
        assert claimed[generation].version.peer == release.version.peer
    holds = task.generation in claimed
    assert (task.status is TaskStatus.CLAIMED) == (holds and not ends)
    # The lowest of all claims of a generation that are not too late.
    end = order_key(task.ended) if task.ended is not None else None
    for generation, claim in claimed.items():
        rivals = [t for t in turns if t.kind == "claim" and t.generation == generation]
        timely = [order_key(t.version) for t in rivals if end is None or order_key(t.version) < end]
        assert order_key(claim.version) == min(timely)


@given(_sets)
@settings(max_examples=300)
def test_S10_the_newest_turn_is_one_step_unless_it_is_a_release(turns: list[Turn]) -> None:
    ordered = sorted(turns, key=lambda each: order_key(each.version))
    for place, newest in enumerate(ordered):
        if newest.kind != "release":
            before, _ = fold(ordered[:place])
            task, judged = step(before, newest)
            after, history = fold(ordered[: place + 1])
            assert (task, judged) == (after, history[-1])


def test_S10_a_claim_of_a_generation_that_was_undone_waits_for_it() -> None:
    """Bob saw a release, and claimed; a late first claim took the release's ground away."""
    seen_by_bob = [
        CREATE,
        turn("claim", 4, "dan"),
        turn("release", 5, "dan"),
        turn("claim", 6, "bob", generation=1),
    ]
    task, _ = fold(seen_by_bob)
    assert (task.status, task.generation, task.holder) == (
        TaskStatus.CLAIMED,
        1,
        seen_by_bob[-1].version,
    )
    late = turn("claim", 3, "ana")
    task, _ = fold([*seen_by_bob, late])
    assert (task.generation, task.holder) == (0, late.version), "the first claim wins"
    opened = [*seen_by_bob, late, turn("release", 8, "ana")]
    task, history = fold([*opened, turn("claim", 9, "cyd", generation=1)])
    assert (task.generation, task.holder) == (1, seen_by_bob[-1].version), "the lowest of its own"
    assert history[-1].event is TaskEvent.SUPERSEDED
    task, _ = fold([*opened, turn("release", 7, "bob", generation=1)])
    assert (task.status, task.generation) == (TaskStatus.OPEN, 2), "bob had let go of it meanwhile"


def test_S10_every_order_of_a_hard_case_agrees() -> None:
    turns = [
        CREATE,
        turn("claim", 2, "bob"),
        turn("claim", 2, "ana", number=7),
        turn("release", 3, "ana"),
        turn("claim", 4, "bob", generation=1),
        turn("cancel", 5, "cyd"),
    ]
    results = {str(fold(order)) for order in permutations(turns)}
    assert len(results) == 1
