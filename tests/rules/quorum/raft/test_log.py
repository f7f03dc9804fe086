"""The log of a machine says of every index what a plain list of terms says, and stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.quorum.raft.config import GroupConfig, first_config
from holdfast.rules.quorum.raft.log import RaftLog, after_snapshot

CONFIG = first_config((("ana", b""),))
steps = st.lists(
    st.tuples(st.sampled_from(("append", "cut", "compact", "config")), st.integers(0, 9)),
    max_size=30,
)


@given(steps)
def test_Q4_runs_of_terms_say_what_a_list_of_terms_says(actions: list[tuple[str, int]]) -> None:
    log, terms, boundary = RaftLog(), [0], 0
    configs = {0: GroupConfig()}
    for action, number in actions:
        last = len(terms) - 1
        if action in ("append", "config"):
            term = terms[-1] + number % 3 or 1
            log = log.appended(term, 1)
            terms.append(term)
            if action == "config":
                configs[last + 1] = CONFIG.with_learner(str(last), b"")
                log = log.with_config(last + 1, configs[last + 1])
        elif action == "cut" and last > boundary:
            first = boundary + 1 + number % (last - boundary)
            log = log.cut(first)
            del terms[first:]
            configs = {at: config for at, config in configs.items() if at < first}
        elif action == "compact":
            boundary += number % (last - boundary + 1)
            log = log.compacted(boundary)
        assert log.last == len(terms) - 1
        assert log.last_term == terms[-1]
        assert [log.term_at(at) for at in range(boundary, len(terms))] == terms[boundary:]
        assert log.term_at(len(terms)) == log.term_at(boundary - 1) == -1
        assert log.config == configs[max(configs)]
        for at in range(boundary, len(terms)):
            assert log.config_at(at)[0] == max(it for it in configs if it <= at)
            probe = max([it for it in range(boundary, at + 1) if terms[it] <= number] or [boundary])
            assert log.probe_from(at, number) == probe


def test_Q4_a_log_of_a_million_entries_is_a_few_numbers() -> None:
    log = RaftLog().appended(1, 500_000).appended(2, 499_999).appended(9, 1)
    assert log.last == 1_000_000
    assert len(log.runs) == 3
    assert (log.term_at(500_000), log.term_at(500_001), log.term_at(1_000_000)) == (1, 2, 9)
    assert len(log.compacted(999_999).runs) == 1


def test_Q4_the_more_up_to_date_log_is_that_with_the_later_last_term_then_the_longer_one() -> None:
    log = RaftLog().appended(2, 5)
    assert log.up_to_date(1, 3)
    assert log.up_to_date(5, 2)
    assert not log.up_to_date(4, 2)
    assert not log.up_to_date(9, 1)


def test_Q10_a_log_after_a_snapshot_has_its_config() -> None:
    log = after_snapshot(40, 6, 12, CONFIG)
    assert (log.last, log.last_term, log.config, log.config_index) == (40, 6, CONFIG, 12)
