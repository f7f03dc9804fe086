"""Rows say in a REPL what a person wants to know, and no more than fits."""

from __future__ import annotations

import msgspec

from holdfast.node.core.change import Receipt
from holdfast.node.core.views import Hit, StateEntry
from holdfast.rules.ids import id_text
from holdfast.rules.limits import SHOWN_CHARS_MAX, SHOWN_ROWS_MAX
from holdfast.rules.order import Version
from holdfast.rules.rows import Entry
from holdfast.rules.shown import Shown, ShownFace, rows_html

ID = bytes.fromhex("01a1effb5a14754498936c376cfe8516")
BAD = "<script>alert('x')</script>"


def test_U1_a_row_shows_its_times_as_dates_and_its_ids_as_text() -> None:
    entry = StateEntry("build", {"ok": True}, 3, "ana", 1_760_000_000_123)
    assert repr(entry) == (
        "StateEntry(key='build', value={'ok': True}, lamport=3, peer='ana', "
        "updated_at=2025-10-09 08:53:20.123+00:00)"
    )
    assert f"id={id_text(ID)}, offset=7" in repr(Receipt(ID, 7, 3, "ana"))
    logged = Entry(1, ID, "team", "state.set", "k", "ana", 3, 1_760_000_000_123, b"secret" * 9)
    assert "raw=<54 bytes>" in repr(logged)
    assert id_text(ID) in repr(logged)


def test_U1_a_time_that_no_calendar_has_is_shown_as_it_is() -> None:
    assert f"updated_at={2**62}" in repr(StateEntry("k", 1, 3, "ana", 2**62))


def test_U1_what_a_row_shows_is_bounded_and_escaped() -> None:
    for long in (BAD * 100_000, [BAD] * 100_000, {BAD + str(n): n for n in range(100_000)}):
        hit = Hit("k", "ana", BAD * 100_000, long, 0.5)
        assert len(repr(hit)) < 3 * SHOWN_CHARS_MAX
        assert len(hit._repr_html_()) < 20 * SHOWN_CHARS_MAX
        assert BAD not in hit._repr_html_()
        assert "&lt;script&gt;" in hit._repr_html_()
        assert BAD not in rows_html([hit])


class _Held(Shown, msgspec.Struct, frozen=True):
    holder: Version


def test_U1_a_version_inside_a_row_shows_its_id_as_text() -> None:
    held = _Held(Version(3, "ana", ID))
    assert repr(held) == f"_Held(holder=Version(lamport=3, peer='ana', id={id_text(ID)}))"


def test_U1_a_table_shows_the_first_rows_and_says_that_there_are_more() -> None:
    rows = iter([StateEntry(f"k{n}", n, n, "ana", 0) for n in range(10 * SHOWN_ROWS_MAX)])
    shown = rows_html(rows)
    assert shown.count("<tr>") == SHOWN_ROWS_MAX + 1
    assert "and more" in shown
    assert len(list(rows)) == 9 * SHOWN_ROWS_MAX - 1, "the others were not read"
    assert rows_html([]) == "<p>empty</p>"


class _Gone(ShownFace):
    def _shown_rows(self) -> list[object]:
        raise OSError(f"the daemon is gone {BAD}")


def test_U1_a_notebook_shows_why_there_is_nothing_to_show() -> None:
    shown = _Gone()._repr_html_()
    assert "OSError: the daemon is gone &lt;script&gt;" in shown
