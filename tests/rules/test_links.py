"""What a link does next, after whatever happens to it."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import errors
from holdfast.rules.backoff import backoff_ms, longest_ms
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    DiskFull,
    EpochChanged,
    ForgedOrigin,
    HoldfastError,
    KeyExpired,
    NotGranted,
    NotTrusted,
    PastEnd,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    Truncated,
    UnknownConsumer,
    UnknownLink,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.filters import Filter
from holdfast.rules.limits import (
    BACKOFF_MS_MAX,
    BACKOFF_MS_MIN,
    COMPRESS_BYTES_PER_S,
    COMPRESS_JUDGED_BYTES,
    LINK_BATCH_ROWS,
    LINK_NAME_CHARS_MAX,
    LINK_URL_BYTES_MAX,
    QUARANTINE_ROWS_MAX,
    REFUSALS_BRIEF_MAX,
)
from holdfast.rules.links import (
    LinkPlan,
    LinkState,
    after_error,
    after_quarantine,
    carries_of,
    check_link_name,
    check_url,
    compression_pays,
    consumer_name,
    origins_of,
    phase,
    said_of_origins,
    start_of,
    without_snapshot,
)

attempts = st.integers(0, 10_000)
lots = st.floats(0, 1, exclude_max=True)
offsets = st.integers(1, 2**62)


def _made(kind: type[HoldfastError]) -> HoldfastError:
    if issubclass(kind, EpochChanged):
        return kind("said", epoch=7)
    if issubclass(kind, Truncated):
        return kind("said", first_available=7)
    return kind("said")


ERRORS = [
    _made(kind)
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError)
]


# --- backoff --------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), lots)
def test_Z6_a_wait_lies_between_the_shortest_and_the_longest(failures: int, lot: float) -> None:
    assert BACKOFF_MS_MIN <= backoff_ms(failures, lot) <= BACKOFF_MS_MAX
    assert BACKOFF_MS_MAX // 2 <= longest_ms(lot) <= BACKOFF_MS_MAX


@given(st.integers(1, 200), lots)
def test_Z6_each_failure_in_a_row_makes_the_wait_longer_or_as_long(
    failures: int, lot: float
) -> None:
    assert backoff_ms(failures, lot) <= backoff_ms(failures + 1, lot)


def test_Z6_the_wait_doubles_until_it_is_the_longest() -> None:
    almost = 1 - 2**-53
    waits = [backoff_ms(failures, almost) for failures in range(1, 10)]
    assert waits[:3] == [399, 799, 1599]
    assert waits[-1] == BACKOFF_MS_MAX - 1


def test_Z6_those_who_fail_together_do_not_come_back_together() -> None:
    waits = {backoff_ms(6, lot / 100) for lot in range(100)}
    assert len(waits) == 100
    assert max(waits) - min(waits) > BACKOFF_MS_MIN * 30


# --- after an error -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
@given(failures=attempts, lot=lots)
def test_Z6_every_error_has_a_consequence(error: HoldfastError, failures: int, lot: float) -> None:
    plan = after_error(error, failures, lot)
    assert plan.state not in (LinkState.LIVE, LinkState.CATCHING_UP, LinkState.PAUSED)
    again = plan.delay_ms is not None
    assert again is (plan.state is not LinkState.STOPPED)
    if plan.delay_ms is not None and not isinstance(error, EpochChanged | Truncated):
        assert BACKOFF_MS_MIN <= plan.delay_ms <= BACKOFF_MS_MAX


@pytest.mark.parametrize("error", [Unreachable("gone"), StoreBusy("held"), UnknownConsumer("who")])
def test_Z7_what_may_pass_is_waited_for(error: HoldfastError) -> None:
    first, second = (after_error(error, failures, 0.9) for failures in (0, 5))
    assert first.state is second.state is LinkState.WAITING
    assert first.delay_ms is not None
    assert second.delay_ms is not None
    assert first.delay_ms < second.delay_ms


@pytest.mark.parametrize(
    "error",
    [
        BadToken("no"),
        KeyExpired("old"),
        ZoneNotTrusted("who"),
        NotGranted("not that"),
        ForgedOrigin("not his"),
        BadAnswer("what"),
        PastEnd("ahead of the log"),
    ],
)
@given(failures=attempts, lot=lots)
def test_Z8_what_only_a_person_can_put_right_is_tried_rarely(
    error: HoldfastError, failures: int, lot: float
) -> None:
    plan = after_error(error, failures, lot)
    assert plan.state is LinkState.REFUSED
    assert plan.delay_ms is not None
    accident = isinstance(error, NotTrusted | BadAnswer) and failures < REFUSALS_BRIEF_MAX
    if accident:
        assert plan.delay_ms <= backoff_ms(REFUSALS_BRIEF_MAX, 0.999)
    else:
        assert plan.delay_ms >= BACKOFF_MS_MAX // 2


def test_Z5_a_truncated_log_is_never_skipped_over_by_itself() -> None:
    gone = Truncated("gone", first_available=9)
    # It connects anew, for a snapshot: at once, but only once in a row.
    assert after_error(gone, 0, 0.5) == LinkPlan(LinkState.CONNECTING, 0)
    assert (after_error(gone, 1, 0.5).delay_ms or 0) >= BACKOFF_MS_MIN
    assert without_snapshot() == LinkPlan(LinkState.TRUNCATED, None)


def test_Z7_a_full_disk_is_tried_again_and_a_closed_store_is_not() -> None:
    assert after_error(DiskFull("full"), 0, 0.0) == LinkPlan(LinkState.DISK_FULL, BACKOFF_MS_MIN)
    for ours in (StoreClosed("closed"), StoreFailed("broke"), UnknownLink("gone")):
        assert after_error(ours, 0, 0.5) == LinkPlan(LinkState.STOPPED, None)


def test_Z6_a_new_epoch_is_followed_at_once_but_not_again_and_again() -> None:
    changed = EpochChanged("restored", epoch=2)
    assert after_error(changed, 0, 0.9) == LinkPlan(LinkState.CONNECTING, 0)
    again = after_error(changed, 1, 0.9).delay_ms
    assert again is not None
    assert again >= BACKOFF_MS_MIN


def test_Z6_a_fault_of_ours_is_waited_out() -> None:
    fault = ZeroDivisionError("nobody thought of this")
    assert after_error(fault, 0, 0.0) == LinkPlan(LinkState.WAITING, BACKOFF_MS_MIN)


def test_Z7_a_quarantine_that_is_full_stops_the_link() -> None:
    assert after_quarantine(QUARANTINE_ROWS_MAX - 1) is None
    assert after_quarantine(QUARANTINE_ROWS_MAX) == LinkPlan(LinkState.QUARANTINE_FULL, None)


# --- after a batch --------------------------------------------------------------------------------


@given(offsets, offsets, st.integers(0, LINK_BATCH_ROWS))
def test_Z7_a_link_is_live_when_a_small_batch_reaches_the_end(
    upto: int, head: int, rows: int
) -> None:
    live = upto >= head and rows < LINK_BATCH_ROWS
    wanted = LinkState.LIVE if live else LinkState.CATCHING_UP
    assert phase(upto, head, rows, LINK_BATCH_ROWS) is wanted


# --- after a change of epoch ----------------------------------------------------------------------


@given(st.integers(0, 9), st.integers(0, 100), st.integers(1, 9), st.integers(1, 101))
def test_Z5_a_new_epoch_is_read_from_its_first_offset_or_not_at_all(
    known: int, cursor: int, epoch: int, first: int
) -> None:
    start = start_of(known, cursor, epoch, first)
    assert start in (first, None)
    if start is None:
        # Something before `first` exists, and no proof that it was read.
        assert first > 1
        assert known > 0
        assert epoch <= known or cursor < first - 1


def test_Z5_what_a_restored_log_no_longer_holds_was_read_if_the_cursor_is_past_it() -> None:
    assert start_of(1, 50, 2, 51) == 51
    assert start_of(1, 49, 2, 51) is None
    assert start_of(1, 0, 2, 1) == 1


def test_Z5_a_lower_epoch_is_another_history() -> None:
    assert start_of(3, 500, 1, 1) == 1
    assert start_of(3, 500, 1, 51) is None


def test_Z6_a_new_link_begins_where_the_log_does() -> None:
    assert start_of(0, 0, 4, 51) == 51


# --- what people say ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("https://plant.example:7411", "https://plant.example:7411"),
        ("https://plant.example:7411/", "https://plant.example:7411"),
        ("HTTPS://Plant.Example:7411", "https://plant.example:7411"),
        ("https://10.0.0.7:1", "https://10.0.0.7:1"),
        ("https://[2001:db8::1]:7411", "https://[2001:db8::1]:7411"),
    ],
)
def test_Z8_an_address_is_kept_in_one_form(said: str, kept: str) -> None:
    assert check_url(said) == kept
    assert check_url(kept) == kept


@pytest.mark.parametrize(
    "said",
    [
        "",
        "plant:7411",
        "https://plant",
        "https://:7411",
        "https://plant:0",
        "https://plant:99999",
        "https://plant:x",
        "https://[::1",
        "https://plant:7411/v1",
        "https://plant:7411?token=hf_secret",
        "https://plant:7411#x",
        "https://me:secret@plant:7411",
        "http://plant:7411",
        "http://127.0.0.1:7411",
        "ftp://plant:7411",
        "unix:/run/x.sock",
        "https://pl ant:7411",
        "https://plant:7411\n",
        f"https://{'p' * LINK_URL_BYTES_MAX}:7411",
    ],
)
def test_Z8_what_is_no_safe_address_is_refused(said: str) -> None:
    with pytest.raises(BadInput):
        check_url(said)


@given(st.text())
def test_Z8_any_text_is_an_address_or_refused(said: str) -> None:
    try:
        kept = check_url(said)
    except BadInput:
        return
    assert check_url(kept) == kept


@pytest.mark.parametrize("name", ["plant", "plant-2", "0", "a.b_c"])
def test_Z6_a_link_name_is_safe_everywhere(name: str) -> None:
    assert check_link_name(name) == name


@pytest.mark.parametrize("name", ["", "Plant", "-x", "a/b", "a b", "ü", "x" * 65, "a\n"])
def test_Z6_other_link_names_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        check_link_name(name)


def test_Z6_a_reader_is_named_after_the_zone_that_reads() -> None:
    assert consumer_name("office", "plant") == "zone:office/plant"
    assert len(consumer_name("o" * 128, "p" * LINK_NAME_CHARS_MAX)) > 128


def test_Z8_a_link_carries_the_zone_itself_unless_told_otherwise() -> None:
    assert origins_of("plant", ()) == ("plant",)
    assert origins_of("plant", ("own",)) == ("plant",)
    assert origins_of("plant", ("any",)) == ()
    assert origins_of("relay", ("own", "plant")) == ("plant", "relay")
    assert origins_of("relay", ("plant", "plant")) == ("plant",)
    with pytest.raises(BadInput):
        origins_of("plant", ("any", "own"))


@pytest.mark.parametrize("carries", [("own",), ("any",), ("own", "x"), ("x", "y")])
def test_Z8_what_is_carried_is_told_as_it_was_said(carries: tuple[str, ...]) -> None:
    kept = Filter(origins=origins_of("plant", carries))
    assert set(carries_of("plant", kept)) == set(carries)


def test_Z8_what_is_carried_is_told_in_words() -> None:
    def said(*carries: str) -> str:
        return said_of_origins("plant", Filter(origins=origins_of("plant", carries)))

    assert said("own").startswith("only what plant itself wrote; --carries any")
    assert said("any") == "everything that plant has, whoever wrote it"
    assert said("own", "x") == "what plant itself and x wrote"
    assert said("x") == "only what x wrote"


@pytest.mark.parametrize(
    ("size", "took_ms", "pays"),
    [
        (COMPRESS_JUDGED_BYTES - 1, 60_000, False),  # too small to tell: it waited for news
        (COMPRESS_BYTES_PER_S, 999, False),
        (COMPRESS_BYTES_PER_S, 1001, True),
        (COMPRESS_JUDGED_BYTES, 10_000, True),
        (COMPRESS_JUDGED_BYTES, 0, False),
    ],
)
def test_Z2_a_batch_is_compressed_where_the_line_is_slow(
    size: int, took_ms: float, pays: bool
) -> None:
    assert compression_pays(size, took_ms) is pays
