"""The newest entries in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.quorum.embedded.entry_cache import EntryCache
from holdfast.rules.quorum.raft.messages import RaftEntry

BYTES_MAX = 64


def entry(term: int, size: int) -> RaftEntry:
    return RaftEntry(term, "data", b"x" * size)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.integers(0, 40), min_size=1, max_size=4)),
            st.tuples(st.just("cut"), st.integers(1, 12)),
            st.tuples(st.just("shrink"), st.integers(0, 30)),
        ),
        max_size=30,
    )
)
def test_Q3_the_cache_holds_the_end_of_the_log_and_never_anything_else(
    deeds: list[tuple[str, list[int] | int]],
) -> None:
    cache, log, term = EntryCache(1, BYTES_MAX), dict[int, RaftEntry](), 0
    for deed, what in deeds:
        last = len(log)
        if deed == "put" and isinstance(what, list):
            term += 1
            entries = [entry(term, size) for size in what]
            cache.put(last + 1, entries)
            log.update(enumerate(entries, last + 1))
        elif deed == "cut" and isinstance(what, int) and what <= last:
            cache.cut(what)
            log = {index: one for index, one in log.items() if index < what}
        elif deed == "shrink" and isinstance(what, int):
            cache.shrink(min(what, last))
        assert cache.next == len(log) + 1
        for first in range(1, len(log) + 1):
            run = cache.run(first, len(log), 1 << 20)
            if run is None:
                assert first < cache.first, "only older entries may be missing"
            else:
                assert run == [log[index] for index in range(first, len(log) + 1)]


def test_Q3_what_the_disk_has_not_is_kept_however_large_it_is() -> None:
    cache = EntryCache(1, BYTES_MAX)
    cache.put(1, [entry(1, 50), entry(1, 50), entry(1, 50)])
    cache.shrink(durable=1)
    assert (cache.first, cache.next) == (2, 4)
    cache.shrink(durable=3)
    assert cache.first == 4


def test_Q3_a_run_ends_where_the_bytes_end_and_has_one_entry_at_least() -> None:
    cache = EntryCache(5, 1 << 20)
    cache.put(5, [entry(1, 50), entry(1, 10), entry(1, 10)])
    assert cache.run(5, 7, 20) == [entry(1, 50)]
    assert cache.run(6, 7, 20) == [entry(1, 10), entry(1, 10)]
    assert cache.run(4, 7, 20) is None
    cache.clear(100)
    assert cache.run(5, 7, 20) is None
    assert cache.next == 100
