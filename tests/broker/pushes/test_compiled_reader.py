"""Both readers of a push, the compiled one and the one in Python, say the same of everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.pushes.decode_push import PushSlice, Sender, decode_slice
from holdfast.broker.pushes.push_frame import PackedAcks, PackedPush, joined_pushes, read_push
from holdfast.protocol.frames import Acks, Item, Push, PushAnswer, encode_frame, read_from_node
from holdfast.rules import compiled, destinations, limits
from holdfast.rules.bodies import Fact, MemorySet, StateSet
from holdfast.rules.errors import BadAnswer, BadInput
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.names import check_peer
from holdfast.rules.push_columns import Created, Parts, PushColumns, beside, in_columns, unpacked
from support import envelopes as e
from support.odd_envelopes import every_change, one_of_each, random_envelope
from support.plain_pushes import PLAIN, message, push
from support.seeds import seeds

MESH: Final = "team"
NAMES: Final = ("bob", "zoë")


@contextmanager
def pure() -> Iterator[None]:
    kept = compiled.part
    compiled.part = None  # type: ignore[assignment]
    try:
        yield
    finally:
        compiled.part = kept


@pytest.fixture(autouse=True)
def _needs_the_compiled_part(request: pytest.FixtureRequest) -> None:
    if compiled.part is None and "both" in request.node.name:
        pytest.skip("there is no compiled part: no compiler, or HOLDFAST_PURE is set")


def read(frame: bytes, name: str, begin: int = 0, end: int = 10**6) -> PushSlice:
    found = read_push(frame)
    if found is None:
        opened = read_from_node(frame)
        assert isinstance(opened, Push)
        found = PackedPush.of(opened)
    return decode_slice(found, begin, end, 0, Sender(b"k" * 32, name), lambda: bytes(16))


def told(found: PushSlice) -> tuple[Any, ...]:
    """All that one can see of a slice."""
    bad = {at: (type(why), why.message, why.hint) for at, why in found.bad.items()}
    return list(found.numbers), list(found.good), bad, found.mesh


def taken_by_both(raws: Sequence[bytes], name: str = "bob", *, epoch: int = 0) -> int:
    """How many of these are good; both readers must agree in everything."""
    frame = push(raws, epoch=epoch)
    mine = read(frame, name)
    with pure():
        reference = read(frame, name)
    assert told(mine) == told(reference)
    for one in (mine.good, reference.good):
        if isinstance(one, PushColumns):
            assert one.highest == max(envelope.lamport for envelope in one)
            assert one.size == sum(len(envelope.raw) for envelope in one)
    return len(mine.good)


def is_plain(raw: bytes, name: str = "bob") -> bool:
    """Whether the compiled reader takes it by itself."""
    assert compiled.part is not None
    found = read_push(push([raw]))
    assert found is not None
    return bool(compiled.part.read_envelopes(found.payload, found.spans, 0, 1, MESH, name)[0])


@pytest.mark.parametrize("raw", PLAIN)
def test_D4_what_nodes_send_is_plain_to_both_readers(raw: bytes) -> None:
    assert is_plain(raw)
    assert taken_by_both([raw]) == 1


def test_D4_a_name_that_was_checked_at_the_hello_is_plain_to_both_readers() -> None:
    raw = message(origin="zoë")
    assert not is_plain(raw)
    assert is_plain(raw, "zoë")
    assert taken_by_both([raw], "zoë") == taken_by_both([raw]) == 1


@pytest.mark.parametrize("raw", PLAIN[::2])
def test_D4_both_readers_say_the_same_of_every_harm(raw: bytes) -> None:
    if len(raw) > 1000:
        raw = message(b"x" * 300)
    changed = list(every_change(raw))
    for at in range(0, len(changed), 500):
        assert taken_by_both(changed[at : at + 500]) < len(changed)


@pytest.mark.parametrize("seed", seeds(4))
def test_D4_both_readers_say_the_same_of_random_envelopes(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        raws = [random_envelope(random) for _ in range(50)]
        taken_by_both(raws, random.choice(NAMES), epoch=random.choice((0, 1, LAMPORT_MAX)))


FRACTIONS: Final = (
    *(b"1.50", b"10.0", b"1.00", b"0.0", b"-0.0", b"0.00", b"00.5", b"-0.5", b"0.0001", b"0.00001"),
    *(b"0.1000000000000000055", b"1.12345678901234567", b"1.5e3", b"1.5.5", b"12345678901234.5"),
    *(b"0.123456789012345", b"123456789012345.5", b"0.1234567890123456", b"123456789012345678.5"),
)
"""Numbers with a point, spelled well or not."""
TEXTS: Final = tuple(
    b'"' + b"a" * before + odd + b"a" * 9 + b'"'
    for odd in (b"\\", b"\\u0041", b"\\q", b'"', b"\x1f", b"\x7f", b"\x80", b"\n", b"\0")
    for before in (0, 5, 8, 11)
)
"""Texts with something odd among letters, which are read eight at a time."""
_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
_SPELLED: Final = st.one_of(
    _JSON.map(msgspec.json.encode),
    st.text(alphabet='{}[]":,0123456789-+.eEtruefalsn \\x7f\x01ü', max_size=12).map(str.encode),
    st.from_regex(rb"-?[0-9]{1,17}(\.[0-9]{0,17})?", fullmatch=True),
    st.sampled_from(
        (b'{"a":1,"a":2}', b"-0", b"01", b"1.", b"[" * 17 + b"]" * 17, b'"\xed\xa0\x80"')
    ),
    st.sampled_from(FRACTIONS),
    st.sampled_from(TEXTS),
    st.binary(max_size=8),
)


@given(st.lists(_SPELLED, min_size=1, max_size=20))
def test_D4_both_readers_say_the_same_of_every_value(values: list[bytes]) -> None:
    taken_by_both([e.raw("state.set", "k", StateSet(value)) for value in values])
    taken_by_both([e.raw("memory.set", "k", MemorySet(value)) for value in values])
    taken_by_both([e.raw("fact.append", "k", Fact("is", value)) for value in values])


def test_D4_both_readers_say_the_same_of_fractions_and_odd_texts() -> None:
    for value in (*FRACTIONS, *TEXTS):
        taken_by_both([e.raw("state.set", "k", StateSet(value))])
    assert is_plain(e.state_set("k", [1.5, -21.25, 0.5, 1.0, 0.0001, 12345678901234.5]))


@given(st.lists(st.text(max_size=140) | st.text("ab\x7f\0 é", max_size=4), min_size=1, max_size=8))
def test_D4_both_readers_say_the_same_of_every_name(names: list[str]) -> None:
    for name in names:
        known = name if is_peer(name) else ""  # only a name that was checked is handed in
        if "\0" not in name:  # else there is no fingerprint of it
            taken_by_both([message(to=(kind, name)) for kind in ("topic", "queue", "dm")], known)
            taken_by_both([message(content_type=name)])
        named = [e.state_set("k", 1), e.memory_set("k", 1)]
        taken_by_both([e.changed(raw, entity=name) for raw in named])
        taken_by_both([message(origin=name), e.state_set("k", 1, base=(1, name), lamport=9)], known)
        taken_by_both([e.raw("memory.set", "k", MemorySet(b"1", (name, "a")))])


def is_peer(name: str) -> bool:
    try:
        return check_peer(name) == name
    except BadInput:
        return False


def test_D4_both_readers_say_the_same_of_values_at_their_limits() -> None:
    most = limits.MESSAGE_BYTES_MAX
    for size in (most - 1, most, most + 1):
        taken_by_both([message(b"x" * size)])
    for count in (limits.TAGS_MAX, limits.TAGS_MAX + 1):
        tags = tuple(f"{n}" for n in range(count))
        taken_by_both([e.raw("memory.set", "k", MemorySet(b"1", tags))])
    for lamport in (1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, LAMPORT_MAX - 1):
        taken_by_both([message(lamport=lamport, seq=1)])
    for epoch in (-1, 0, LAMPORT_MAX, LAMPORT_MAX + 1):
        taken_by_both([message()], epoch=epoch)


@given(st.data())
def test_D4_both_readers_find_the_same_in_every_frame(data: st.DataObject) -> None:
    """What the compiled one does not take must not be taken for something else."""
    frame = bytearray(
        push(PLAIN[:1] * data.draw(st.integers(0, 3)), epoch=data.draw(st.integers(0, 300)))
    )
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(40, len(frame) - 1)))
        frame[at] = data.draw(st.integers(0, 255))
    raw = bytes(frame[: data.draw(st.integers(len(frame) - 3, len(frame) + 1))])
    found = read_push(raw)
    if found is None:
        return
    opened = read_from_node(raw)
    assert isinstance(opened, Push)
    reference = PackedPush.of(opened)
    assert (found.mesh, found.epoch) == (reference.mesh, reference.epoch)
    assert list(found.numbers) == list(reference.numbers)
    assert [raw[(s >> 31) : (s >> 31) + (s & 2**31 - 1)] for s in unpacked(found.spans)] == [
        item.raw for item in opened.items
    ]


@pytest.mark.parametrize("mesh", ["Team", "-a", "a b", "a/b", "é", "", "t" * 65, "t\0"])
def test_D4_both_readers_refuse_a_mesh_that_has_no_such_name(mesh: str) -> None:
    """Whoever opens a frame looks at the name of its mesh before; none relies on that."""
    raws = [e.state_set("k", 1, mesh=mesh)]
    assert read_push(push(raws, mesh=mesh)) is None
    opened = PackedPush.of(Push(mesh, 0, [Item(1, raws[0])]))
    mine = decode_slice(opened, 0, 1, 0, Sender(b"k" * 32, "bob"), lambda: bytes(16))
    with pure():
        reference = decode_slice(opened, 0, 1, 0, Sender(b"k" * 32, "bob"), lambda: bytes(16))
    assert told(mine) == told(reference)
    assert not mine.good


def test_D4_both_readers_refuse_a_frame_that_promises_more_items_than_it_has() -> None:
    for head in (b"\xdd\xff\xff\xff\xff", b"\xdd\x00\x01\x00\x01", b"\xdc\xff\xff"):
        raw = b"\x94\x18\xa4team\x00" + head
        assert read_push(raw) is None
        with pytest.raises(BadAnswer):
            read_from_node(raw)


_NUMBER: Final = st.sampled_from((0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32, LAMPORT_MAX - 9))


@given(st.lists(_NUMBER, max_size=20), _NUMBER, _NUMBER, st.integers(1, 2**40 - 99))
def test_D4_both_ways_write_the_same_answers(
    numbers: list[int], epoch: int, seen: int, seq: int
) -> None:
    tickets = bytes(range(16)) * len(numbers)
    created = Created(epoch, seq, tickets, seen)
    frame = Acks(
        MESH,
        epoch,
        [
            PushAnswer(number, 201, epoch, seq + at, bytes(range(16)), True, seen)
            for at, number in enumerate(numbers)
        ],
    )
    column = memoryview(b"".join(n.to_bytes(8, "little") for n in numbers)).cast("q")
    for given_numbers in (column, numbers):
        packed = PackedAcks.of(MESH, given_numbers, created)
        assert packed.encoded() == encode_frame(frame)
        assert packed.opened() == frame


def test_D4_what_is_not_plain_is_read_between_what_is() -> None:
    odd = e.state_set("k", 1e99)
    raws = [PLAIN[0], odd, b"no envelope", PLAIN[1], e.state_set("k", 1, mesh="other"), odd]
    assert taken_by_both(raws) == 4
    found = read(push(raws), "bob", 1, 5)
    assert (list(found.numbers), sorted(found.bad)) == ([8, 9, 10, 11], [1, 3])
    assert [one.raw for one in found.good] == [odd, PLAIN[1]]


def test_D4_columns_are_cut_and_joined_without_a_difference() -> None:
    raws = [*PLAIN, *one_of_each("k", 1)]
    good = read(push(raws), "bob").good
    assert isinstance(good, PushColumns)
    envelopes = list(good)
    assert len(envelopes) == len(raws)
    assert [good[at] for at in range(len(good))] == envelopes
    for begin, end in ((0, 3), (2, 9), (5, 5), (7, len(raws))):
        part = good[begin:end]
        assert list(part) == envelopes[begin:end]
        assert list(part[1:]) == envelopes[begin:end][1:]
        assert len(part.payload) < len(good.payload)
    assert [one for run in good.in_runs() for one in run] == envelopes
    again = PushColumns.of(envelopes)
    assert list(again) == envelopes
    assert again.runs == good.runs or len(again.runs) <= len(good.runs)
    small = [read_push(push([raw])) for raw in raws]
    joined = joined_pushes([one for one in small if one is not None] or [packed(raws)])
    sender = Sender(b"k" * 32, "bob")
    assert list(decode_slice(joined, 0, 99, 0, sender, lambda: bytes(16)).good) == envelopes


def packed(raws: Sequence[bytes]) -> PackedPush:
    opened = read_from_node(push(raws))
    assert isinstance(opened, Push)
    return PackedPush.of(opened)


def test_D4_parts_of_a_group_get_the_answers_that_are_theirs() -> None:
    one, two = (
        PushColumns.of(list(read(push(PLAIN[:3]), "bob").good)),
        [*read(push(PLAIN[3:5]), "bob").good],
    )
    group = Parts([one, two])
    assert [list(those) for those in in_columns(group)] == [list(one), two]
    for answers in (Parts([[1, 2, 3], [4, 5]]), [1, 2, 3, 4, 5], Parts([[1], [2, 3, 4, 5]])):
        assert [(list(of), list(to)) for of, to in beside(group, answers)] == [
            (list(one), [1, 2, 3]),
            (two, [4, 5]),
        ]


def test_D4_envelopes_that_came_one_by_one_share_columns() -> None:
    """Otherwise each would be a statement of its own in the transaction that accepts it."""
    columns = read(push(PLAIN[:2]), "bob").good
    assert isinstance(columns, PushColumns)
    one, two, three = (list(read(push([raw]), "bob").good) for raw in PLAIN[2:5])
    group = Parts([one, two, columns, three, [], one])
    assert [list(those) for those in in_columns(group)] == [one + two, list(columns), three + one]
    assert in_columns(Parts([[], one]))[0].ids == (one[0].id,)


def test_D4_the_compiled_part_has_the_limits_of_the_rules_in_both() -> None:
    assert compiled.part is not None
    for name in (name for name in dir(compiled.part) if name.endswith("_MAX")):
        known = getattr(limits, name, None) or getattr(destinations, name)
        assert getattr(compiled.part, name) == known, name


def test_D4_both_hashes_are_the_same() -> None:
    assert compiled.part is not None
    for size in (*range(260), 4096, 100_001):
        data = Random(size).randbytes(size)
        assert compiled.part.sha256(data) == sha256(data).digest()
