"""What is said on a local network, and what is believed of what others say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.links.discovery import (
    InterfaceAddress,
    RecordBudget,
    SoughtNames,
    Surroundings,
    candidates,
    full_name,
    instance_of,
    is_spoken,
    read_instance,
    surroundings,
)
from holdfast.rules.limits import (
    BUS_CANDIDATES_MAX,
    BUS_NAMES_WAITING_MAX,
    BUS_RECORDS_MAX,
    BUS_RECORDS_MS,
    BUS_RESOLVE_EVERY_MS,
    BUS_RESOLVES_MAX,
)

KEY = bytes(range(32))
NAME = instance_of(KEY)
HERE = [
    InterfaceAddress(1, "127.0.0.1", 8),
    InterfaceAddress(1, "::1", 128),
    InterfaceAddress(2, "10.1.0.5", 24),
    InterfaceAddress(2, "fe80::5", 64),
    InterfaceAddress(3, "10.2.0.5", 24),
]
AROUND = surroundings([("0.0.0.0", 7420), ("::", 7420)], HERE)


def test_B6_an_instance_tells_those_who_know_the_key_and_nobody_else() -> None:
    assert NAME == "08a6fbc3d0adfe34", "peers of another version must recognise it too"
    assert read_instance(full_name(NAME)) == NAME
    assert KEY.hex()[:16] != NAME


@pytest.mark.parametrize(
    "name",
    [
        "",
        NAME,
        f"{NAME.upper()}._holdfast._tcp.local.",
        f"{NAME}-2._holdfast._tcp.local.",
        f"{NAME[1:]}._holdfast._tcp.local.",
        f"{NAME}._http._tcp.local.",
        f"x.{NAME}._holdfast._tcp.local.",
        "kitchen printer._holdfast._tcp.local.",
        "१२३४५६७८९०१२३४५६._holdfast._tcp.local.",
        "._holdfast._tcp.local.",
    ],
)
def test_B6_names_that_are_not_of_our_form_are_counted_and_forgotten(name: str) -> None:
    names = _names()
    assert read_instance(name) is None
    assert not names.heard(name, 0)
    assert (names.foreign, names.take(0)) == (1, None)


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        (b"\x03v=1", True),
        (b"\x00\x02\xff\xfe\x03v=1\x01x", True),
        (b"", False),
        (b"\x00", False),
        (b"\x01v", False),
        (b"\x04v=11", False),
        (b"\x03v=2", False),
        (b"\xffv=1", False),
        (b"\x03v=", False),
        (b"\x04\x03v=1", False),
        (b"v=1", False),
    ],
)
def test_B6_a_version_is_compared_as_bytes(text: bytes, is_ours: bool) -> None:
    assert is_spoken(text) is is_ours


# --- where we are ------------------------------------------------------------------------------


def test_B6_a_bus_speaks_about_itself_where_it_listens() -> None:
    assert AROUND.addresses == ("10.1.0.5", "fe80::5", "10.2.0.5")
    assert AROUND.interfaces == ("10.1.0.5", 2, "10.2.0.5")
    assert AROUND.networks == ("10.1.0.0/24", "fe80::/64", "10.2.0.0/24")
    assert surroundings([("0.0.0.0", 1)], HERE).interfaces == ("10.1.0.5", "10.2.0.5")
    assert surroundings([("10.2.0.5", 1)], HERE).addresses == ("10.2.0.5",)


def test_B6_a_bus_of_one_machine_says_nothing_to_others() -> None:
    around = surroundings([("127.0.0.1", 7420)], HERE)
    assert (around.interfaces, around.addresses, around.loopback) == (
        ("127.0.0.1",),
        ("127.0.0.1",),
        True,
    )
    both = surroundings([("127.0.0.1", 1), ("10.1.0.5", 2)], HERE)
    assert (both.port, both.addresses, both.loopback) == (2, ("10.1.0.5",), False)


@pytest.mark.parametrize("host", ["10.9.9.9", "a name", "::2", ""])
def test_B6_a_bus_that_listens_nowhere_known_announces_nothing(host: str) -> None:
    assert surroundings([(host, 7420)], HERE) == Surroundings()


# --- what is believed --------------------------------------------------------------------------


def test_B6_the_nearest_candidates_come_first() -> None:
    heard = ["192.168.77.1", "10.1.0.9", "fe80::9%2", "fd00::1"]
    assert candidates(_at(99, *heard), AROUND) == (
        "10.1.0.9:99",
        "[fe80::9%2]:99",
        "192.168.77.1:99",
        "[fd00::1]:99",
    )


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "2001:4860:4860::8888",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "224.0.0.251",
        "255.255.255.255",
        "ff02::fb",
        "fe80::9",
        "::ffff:10.1.0.9",
        "not an address",
        "",
    ],
)
def test_B6_a_stranger_cannot_make_us_dial_ourselves_or_the_world(text: str) -> None:
    assert candidates(_at(99, text), AROUND) == ()
    assert candidates(_at(99, "10.1.0.9", text), AROUND) == ("10.1.0.9:99",)


@pytest.mark.parametrize("port", [0, -1, 1 << 16])
def test_B6_an_answer_without_a_port_is_none(port: int) -> None:
    assert candidates(_at(port, "10.1.0.9"), AROUND) == ()


def test_B6_an_answer_has_only_so_many_addresses() -> None:
    crowd = [f"10.1.0.{n}" for n in range(1, 200)] * 2
    found = candidates(_at(99, *crowd), AROUND)
    assert len(found) == BUS_CANDIDATES_MAX == len(set(found))


def test_B6_on_one_machine_only_that_machine_is_dialled() -> None:
    around = surroundings([("127.0.0.1", 7420)], HERE)
    assert candidates(_at(99, "127.0.0.1", "10.1.0.9"), around) == ("127.0.0.1:99",)


# --- when a name is resolved -------------------------------------------------------------------


def test_B6_strangers_are_counted_and_never_resolved() -> None:
    names = _names()
    for n in range(5_000):
        assert not names.heard(full_name(f"{n:016x}"), n)
    assert (names.strangers, names.take(10_000), names.next_at()) == (5_000, None, None)


def test_B6_nobody_looks_for_himself() -> None:
    names = SoughtNames()
    names.own = NAME
    assert not names.seek([KEY])
    assert not names.heard(full_name(NAME), 0)
    assert names.take(0) is None


def test_B6_a_name_is_resolved_so_often_whatever_is_heard_of_it() -> None:
    names = _names()
    span = 100_000
    resolved = 0
    for now in range(0, span, 10):
        names.heard(full_name(NAME), now)
        resolved += names.take(now) == NAME
    assert resolved == span // BUS_RESOLVE_EVERY_MS + BUS_RESOLVES_MAX - 1


def test_B6_what_was_heard_too_soon_is_resolved_later_and_not_lost() -> None:
    names = _names()
    for _ in range(BUS_RESOLVES_MAX):
        names.heard(full_name(NAME), 0)
        assert names.take(0) == NAME
    names.heard(full_name(NAME), 1)
    assert names.take(1) is None
    at = names.next_at()
    assert at == BUS_RESOLVE_EVERY_MS
    assert names.take(at) == NAME


def test_B6_a_peer_that_is_sought_no_more_is_forgotten() -> None:
    names = _names()
    names.heard(full_name(NAME), 0)
    assert not names.seek([])
    assert (names.take(0), names.is_sighted(NAME), names.key_of(NAME)) == (None, False, None)
    assert names.seek([KEY]), "and is new when it is sought again"


def test_B6_a_name_that_somebody_waits_for_is_resolved_until_he_has_it() -> None:
    names = SoughtNames()
    assert names.want(NAME)
    assert not names.want(NAME)
    assert names.heard(full_name(NAME), 0)
    assert names.take(0) == NAME
    names.unwant(NAME)
    assert names.heard(full_name(NAME), 0), "the other one still waits"
    names.unwant(NAME)
    assert not names.heard(full_name(NAME), 0)
    assert names.take(0) is None


def test_B6_if_too_many_names_wait_the_oldest_is_dropped() -> None:
    keys = [n.to_bytes(32, "big") for n in range(BUS_NAMES_WAITING_MAX + 3)]
    names = SoughtNames()
    names.seek(keys)
    for key in keys:
        names.heard(full_name(instance_of(key)), 0)
    taken = list(iter(lambda: names.take(0), None))
    assert taken == [instance_of(key) for key in keys[3:]]
    assert names.dropped == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from((0, 10, 4_000)), st.booleans()), max_size=60
    )
)
def test_B6_names_are_taken_once_for_each_queue_and_within_their_rate(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Against a plain model: a name that waits is taken exactly once, and never too often."""
    keys = [bytes([n]) * 32 for n in range(2)]
    names = SoughtNames()
    names.seek(keys)
    now, waiting, times = 0, set[str](), dict[str, list[int]]()
    for which, wait, take in steps:
        now += wait
        name = instance_of(keys[which])
        names.heard(full_name(name), now)
        waiting.add(name)
        if take and (taken := names.take(now)) is not None:
            waiting.remove(taken)
            times.setdefault(taken, []).append(now)
    while (at := names.next_at()) is not None:
        now = max(now, at)
        taken = names.take(now)
        assert taken is not None
        waiting.remove(taken)
        times.setdefault(taken, []).append(now)
    assert not waiting
    for at_times in times.values():
        for first, start in enumerate(at_times):
            for count, end in enumerate(at_times[first:], 1):
                assert count <= BUS_RESOLVES_MAX + 1 + (end - start) // BUS_RESOLVE_EVERY_MS


def test_B6_too_many_records_in_a_span_are_too_much() -> None:
    budget = RecordBudget()
    assert budget.spend(BUS_RECORDS_MAX, 0)
    assert not budget.spend(1, 1)
    assert budget.spend(1, BUS_RECORDS_MS), "the next span begins anew"


def _at(port: int, *ips: str) -> list[tuple[str, int]]:
    return [(ip, port) for ip in ips]


def _names() -> SoughtNames:
    names = SoughtNames()
    assert names.seek([KEY])
    return names
