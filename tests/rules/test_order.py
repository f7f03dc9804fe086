"""The one order, in Python and in SQL alike."""

from __future__ import annotations

import unicodedata
from itertools import product
from typing import Any, cast

import apsw
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.order import ORDER_COLUMNS, Stamp, Version, is_newer, order_key
from support.envelopes import make_id

# By code units of UTF-16 U+FFFF stands above U+10000; by bytes, as here, below.
PEERS = (
    "",
    "A",
    "Z",
    "a",
    "z",
    "zz",
    "é",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
)
ALL = [
    Version(lamport, peer, make_id(number))
    for lamport, peer, number in product((1, 2, 2**62), PEERS, (1, 2))
]


def test_S5_versions_stand_by_lamport_then_by_the_bytes_of_the_peer_then_by_id() -> None:
    assert sorted(reversed(ALL), key=order_key) == ALL


def test_S5_newer_means_later_in_that_order_and_nothing_is_newer_than_itself() -> None:
    for i, one in enumerate(ALL):
        for j, other in enumerate(ALL):
            assert is_newer(one, other) == (i > j)


def test_S5_sql_orders_versions_in_the_same_way() -> None:
    with apsw.Connection(":memory:") as connection:
        connection.execute("CREATE TABLE v (lamport INTEGER, peer TEXT, id BLOB) STRICT")
        connection.executemany("INSERT INTO v VALUES (?, ?, ?)", reversed(ALL))
        columns = ", ".join(ORDER_COLUMNS)
        found = connection.execute(f"SELECT {columns} FROM v ORDER BY {columns}").fetchall()
        assert [Version(*cast(Any, row)) for row in found] == ALL
        for one, other in product(ALL[::5], ALL[::3]):
            newer = connection.execute("SELECT (?, ?, ?) > (?, ?, ?)", (*one, *other)).get
            assert bool(newer) == is_newer(one, other)


_versions = st.builds(
    Version,
    st.integers(1, 3),
    st.text(max_size=3)
    .filter(lambda text: text.isprintable())
    .map(lambda text: unicodedata.normalize("NFC", text)),
    st.integers(0, 3).map(make_id),
)


@given(_versions, _versions, _versions)
def test_S5_the_order_is_total(a: Version, b: Version, c: Version) -> None:
    assert is_newer(a, b) + is_newer(b, a) + (a == b) == 1
    if is_newer(a, b) and is_newer(b, c):
        assert is_newer(a, c)


def test_S5_a_stamp_is_written_as_people_read_it() -> None:
    assert str(Stamp(7, "ana")) == "7@ana"
    assert Version(7, "ana", make_id(1)).stamp == Stamp(7, "ana")
