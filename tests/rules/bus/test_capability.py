"""Capabilities: signed step by step, narrowed only, good for one holder and for a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.rules.bus import capability
from holdfast.rules.bus.capability import Capability, check_capability, issue, narrow
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.bus.scope import (
    MESH_RIGHTS,
    check_scope,
    covers,
    may_listen,
    may_send,
    mesh_scope,
    one_covers,
)
from holdfast.rules.errors import BadInput, CapabilityRefused
from holdfast.rules.limits import (
    BUS_CAPABILITY_BYTES_MAX,
    BUS_CAPABILITY_DEPTH_MAX,
    BUS_CAPABILITY_MS,
    BUS_CAPABILITY_MS_MAX,
    BUS_CAPABILITY_SCOPES_MAX,
    BUS_CLOCK_SKEW_MS,
    DAY_MS,
)

NOW = 1_700_000_000_000
END = NOW + BUS_CAPABILITY_MS
OWNER, ANA, BOB, EVE, LAST = (SigningKey(bytes((number,)) * 32) for number in range(5))
READ, WRITE = mesh_scope("team", "read"), mesh_scope("team", "write")


def key(of: SigningKey) -> bytes:
    return bytes(of.verify_key)


def anas(*scopes: str, end: int = END) -> Capability:
    return issue(OWNER, key(ANA), scopes or (READ, WRITE), now_ms=NOW, expires_at=end, name="ana")


def passed_on(end: int = END) -> Capability:
    return narrow(ANA, anas(), key(BOB), [READ], now_ms=NOW + 1, expires_at=end)


def test_B6_a_capability_says_who_may_do_what_until_when() -> None:
    found = check_capability(anas().raw, key(ANA), NOW)
    assert (found.issuer, found.holder, found.name) == (key(OWNER), key(ANA), "ana")
    assert (found.scopes, found.expires_at) == ((READ, WRITE), END)
    assert found.allows(WRITE, NOW)
    assert not found.allows(mesh_scope("team", "relay"), NOW)
    assert not found.allows(mesh_scope("other", "read"), NOW)
    assert not found.allows(WRITE, END + BUS_CLOCK_SKEW_MS)


def test_B6_a_capability_is_passed_on_with_less() -> None:
    found = check_capability(passed_on(END - DAY_MS).raw, key(BOB), NOW + 2)
    assert (found.issuer, found.holder, found.name) == (key(OWNER), key(BOB), "")
    assert (found.scopes, found.expires_at) == ((READ,), END - DAY_MS)
    assert not found.allows(WRITE, NOW)


def test_B6_a_copied_capability_is_worth_nothing_to_another_peer() -> None:
    with pytest.raises(CapabilityRefused, match="another holder"):
        check_capability(anas().raw, key(EVE), NOW)
    with pytest.raises(CapabilityRefused, match="another holder"):
        check_capability(passed_on().raw, key(ANA), NOW)
    with pytest.raises(CapabilityRefused, match="only its holder"):
        narrow(EVE, anas(), key(BOB), [READ], now_ms=NOW, expires_at=END)


def test_B6_nobody_makes_a_capability_that_gives_more() -> None:
    with pytest.raises(CapabilityRefused, match=r"step 2 of 2 .* widens it: 'mesh:team:relay'"):
        narrow(ANA, anas(), key(BOB), ["mesh:team:relay"], now_ms=NOW, expires_at=END)
    with pytest.raises(CapabilityRefused, match="later than the step before"):
        narrow(ANA, anas(), key(BOB), [READ], now_ms=NOW, expires_at=END + 1)


def forged(by: SigningKey, of: Capability, holder: SigningKey, **fields: object) -> bytes:
    """What a liar signs without asking `narrow`."""
    step = capability._signed(
        by, of.steps[-1].signature, key(holder), "", [READ], NOW + 1, of.expires_at
    )
    step = msgspec.structs.replace(step, **fields)
    text = capability._signed_text(of.steps[-1].signature, step)
    step = msgspec.structs.replace(step, signature=by.sign(text).signature)
    return Capability(1, of.issuer, (*of.steps, step)).raw


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"scopes": ("mesh:team:relay",)}, "step 2 of 2 .* widens it"),
        ({"scopes": (READ, "mesh:other:read")}, "'mesh:other:read' is not within"),
        ({"expires_at": END + 1}, "step 2 of 2 .* later than"),
        ({"name": "zoe"}, "gives a name, which only its issuer may"),
        ({"issued_at": NOW + DAY_MS}, "was issued 24 hours in the future"),
    ],
)
def test_B6_a_step_that_gives_more_than_the_one_before_is_refused_and_named(
    fields: dict[str, object], why: str
) -> None:
    raw = forged(ANA, anas(), BOB, **fields)
    with pytest.raises(CapabilityRefused, match=why):
        check_capability(raw, key(BOB), NOW)


def test_B6_a_step_that_another_key_signed_is_refused_and_named() -> None:
    with pytest.raises(CapabilityRefused, match=r"step 2 of 2 .* not signed by the holder"):
        check_capability(forged(EVE, anas(), BOB), key(BOB), NOW)
    of_eve = msgspec.structs.replace(anas(), issuer=key(EVE))
    with pytest.raises(CapabilityRefused, match=r"step 1 of 1 .* not signed by its issuer"):
        check_capability(of_eve.raw, key(ANA), NOW)


def test_B6_a_step_cannot_be_put_behind_another_chain() -> None:
    """A step that Ana signed for what she got from one issuer says nothing about another."""
    other = issue(EVE, key(ANA), [READ, WRITE], now_ms=NOW, expires_at=END, name="ana")
    mixed = Capability(1, key(EVE), (other.steps[0], passed_on().steps[1]))
    with pytest.raises(CapabilityRefused, match=r"step 2 of 2 .* not signed"):
        check_capability(mixed.raw, key(BOB), NOW + 2)
    shortened = Capability(1, key(OWNER), (passed_on().steps[1],))
    with pytest.raises(CapabilityRefused, match="not signed"):
        check_capability(shortened.raw, key(BOB), NOW + 2)


def test_B6_every_flipped_bit_of_a_capability_is_refused() -> None:
    good = passed_on().raw
    check_capability(good, key(BOB), NOW + 2)
    taken = []
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            if not _refused(partial(check_capability, bytes(bad), key(BOB), NOW + 2)):
                taken.append((at, bit))
    assert not taken


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except CapabilityRefused:
        return True
    return False


def test_B6_a_clock_that_differs_a_little_is_forgiven_and_one_a_year_off_is_told() -> None:
    raw = anas().raw
    check_capability(raw, key(ANA), END + BUS_CLOCK_SKEW_MS - 1)
    check_capability(raw, key(ANA), NOW - BUS_CLOCK_SKEW_MS)
    with pytest.raises(CapabilityRefused, match="expired 5 minutes ago"):
        check_capability(raw, key(ANA), END + BUS_CLOCK_SKEW_MS)
    with pytest.raises(
        CapabilityRefused, match=r"expired 335 days ago.*clock says 2024-11"
    ) as late:
        check_capability(raw, key(ANA), NOW + 365 * DAY_MS)
    assert "set it" in (late.value.hint or "")
    with pytest.raises(CapabilityRefused, match=r"issued 365 days in the future.*2022-11") as early:
        check_capability(raw, key(ANA), NOW - 365 * DAY_MS)
    assert "set the clock" in (early.value.hint or "")


def test_B6_a_chain_is_as_long_as_it_may_be_and_no_longer() -> None:
    keys = [ANA, BOB, EVE, LAST, OWNER]
    chain = anas(READ)
    for at in range(1, BUS_CAPABILITY_DEPTH_MAX):
        chain = narrow(keys[at - 1], chain, key(keys[at]), [READ], now_ms=NOW, expires_at=END)
    check_capability(chain.raw, key(LAST), NOW)
    with pytest.raises(CapabilityRefused, match="5 steps; most is 4"):
        narrow(LAST, chain, key(OWNER), [READ], now_ms=NOW, expires_at=END)
    with pytest.raises(CapabilityRefused, match="5 steps; most is 4"):
        check_capability(forged(LAST, chain, OWNER), key(OWNER), NOW)


def test_B6_what_nobody_may_give_is_not_issued() -> None:
    for scopes in ([], ["mesh:team:own"], [f"service:s{n}" for n in range(17)]):
        with pytest.raises(BadInput):
            issue(OWNER, key(ANA), scopes, now_ms=NOW, expires_at=END)
    for end in (NOW, NOW - 1, NOW + BUS_CAPABILITY_MS_MAX + 1):
        with pytest.raises(BadInput):
            anas(end=end)
    with pytest.raises(BadInput):
        issue(OWNER, bytes(32), [READ], now_ms=NOW, expires_at=END)
    long = [f"topic:{chr(97 + n)}{'x' * 90}" for n in range(BUS_CAPABILITY_SCOPES_MAX)]
    of_bob = narrow(ANA, anas(*long), key(BOB), long, now_ms=NOW, expires_at=END)
    with pytest.raises(CapabilityRefused, match="bytes; most is"):
        narrow(BOB, of_bob, key(EVE), long, now_ms=NOW, expires_at=END)


def test_B6_a_capability_for_ever_is_refused_whoever_signed_it() -> None:
    step = msgspec.structs.replace(anas().steps[0], expires_at=NOW + BUS_CAPABILITY_MS_MAX + 1)
    text = capability._signed_text(key(OWNER), step)
    step = msgspec.structs.replace(step, signature=OWNER.sign(text).signature)
    raw = Capability(1, key(OWNER), (step,)).raw
    with pytest.raises(CapabilityRefused, match="nobody may give"):
        check_capability(raw, key(ANA), NOW)


@given(st.binary(max_size=400) | st.recursive(
    st.none() | st.integers(0, 2**63) | st.text(max_size=9) | st.binary(max_size=64),
    lambda inner: st.lists(inner, max_size=6),
).map(msgspec.msgpack.encode))  # fmt: skip
def test_R4_no_bytes_break_the_reader_of_capabilities(raw: bytes) -> None:
    assert _refused(lambda: capability.read_capability(raw))


def test_R4_a_capability_has_one_spelling_and_a_bounded_size() -> None:
    good = anas().raw
    longer = good.replace(b"\xc4\x20" + key(ANA), b"\xc5\x00\x20" + key(ANA))
    for raw in (
        good + b"\0",
        good[:-1],
        longer,
        b"\x91" * 5000,
        bytes(BUS_CAPABILITY_BYTES_MAX + 1),
    ):
        with pytest.raises(CapabilityRefused):
            check_capability(raw, key(ANA), NOW)


# --- scopes --------------------------------------------------------------------------------------

parts = st.sampled_from(["a", "b", "*"])
patterns = st.builds(
    lambda front, tail: ".".join([*front, *tail]),
    st.lists(parts, min_size=0, max_size=3),
    st.sampled_from([["a"], ["*"], [">"]]),
)


def named_by(pattern: str) -> set[str]:
    """Every name of one to five parts of a, b and c that a pattern stands for."""
    letters = "abc"
    names = [[letter] for letter in letters]
    every = list(names)
    for _ in range(4):
        names = [[*name, letter] for name in names for letter in letters]
        every += names

    def fits(name: list[str]) -> bool:
        wanted = pattern.split(".")
        if wanted[-1] == ">":
            wanted = wanted[:-1]
            if len(name) <= len(wanted):
                return False
        elif len(name) != len(wanted):
            return False
        return all(one in ("*", part) for one, part in zip(wanted, name, strict=False))

    return {".".join(name) for name in every if fits(name)}


@given(patterns, patterns)
def test_B6_a_pattern_covers_another_if_it_stands_for_all_its_names(
    wide: str, narrow_: str
) -> None:
    expected = named_by(narrow_) <= named_by(wide)
    assert covers(f"topic:{wide}", f"topic:{narrow_}") == expected
    assert not covers(f"topic:{wide}", f"service:{narrow_}")


def test_B6_a_right_in_a_mesh_covers_itself_alone() -> None:
    for right in MESH_RIGHTS:
        for other in MESH_RIGHTS:
            assert covers(mesh_scope("a", right), mesh_scope("a", other)) == (right == other)
        assert not covers(mesh_scope("a", right), mesh_scope("b", right))
    assert one_covers(["topic:a.>", "service:x"], "topic:a.b")
    assert not one_covers([], "topic:a")


@pytest.mark.parametrize(
    "text",
    [
        *("", "mesh", "mesh:team", "mesh:team:own", "mesh:Team:read", "mesh::read", "topic:"),
        *("topic:a..b", "topic:a.>.b", "topic:.a", "service:\n", "file:x", "service:" + "x" * 129),
    ],
)
def test_B6_a_text_that_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        check_scope(text)


def test_B6_a_peer_with_some_scopes_sends_and_hears_within_them_alone() -> None:
    scopes = ["service:resize", "topic:builds.>"]
    may = [
        (MessageKind.REQUEST, "resize"),
        (MessageKind.PUBLISH, "builds.red"),
        (MessageKind.SEND, "builds.red"),
        (MessageKind.REPLY, ""),
        (MessageKind.CANCEL, ""),
    ]
    may_not = [
        (MessageKind.REQUEST, "builds.red"),
        (MessageKind.REQUEST, "delete"),
        (MessageKind.PUBLISH, "resize"),
        (MessageKind.SEND, ""),
        (MessageKind.SEND, "other"),
    ]
    assert all(may_send(scopes, kind, topic) for kind, topic in may)
    assert not any(may_send(scopes, kind, topic) for kind, topic in may_not)
    assert may_listen(scopes, "builds.*")
    assert not may_listen(scopes, ">")
