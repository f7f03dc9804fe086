"""Inbox, outbox and readers of the log in the console."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from holdfast.node.core.intake import Intake
from holdfast.rules.ids import parse_id
from node.http.test_send import shared_home
from support import envelopes as e
from support.console import ConsoleInThread, console_up

SCRIPT = "<script>alert(1)</script> hello"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    """Its mesh is shared through a broker that cannot be reached: all stays where it is put."""
    with console_up(shared_home(tmp_path_factory.mktemp("mail") / "home", "team")) as found:
        yield found


def bring(console: ConsoleInThread, *raws: bytes) -> None:
    engine = console.up.daemon.api.engine
    engine.store.write(Intake(engine.ctx, raws, delivered=dict.fromkeys(raws, b"B" * 16)))


def refuse(console: ConsoleInThread, id: str) -> None:
    """As a broker does that takes it never."""

    def work(tx: object) -> None:
        (row,) = tx.outbox_find(parse_id(id))  # type: ignore[attr-defined]
        refused = msgspec.structs.replace(
            row, state="dead", attempts=1, ended_at=9, code="not_granted", error="you may not <b>"
        )
        tx.outbox_put(refused)  # type: ignore[attr-defined]

    console.up.daemon.api.engine.write("test", work)


def test_U5_what_came_is_listed_read_and_answered(console: ConsoleInThread) -> None:
    browser = console.browser()
    assert "Nothing has come yet" in browser.get("/inbox").text
    bring(
        console,
        e.message_send("topic", "news", SCRIPT.encode(), lamport=1, content_type="text/plain"),
    )
    page = browser.get("/inbox").text
    assert "1 unread of 1 message" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; hello" in page
    assert "<script>alert" not in page
    (came,) = console.up.daemon.api.node.inbox.list()
    assert "not yet" in browser.get(f"/inbox/{came.id}").text
    done = browser.done("inbox.read", at="/inbox", id=came.id)
    assert done.status == 200
    assert f"holdfast inbox read {came.id}" in done.text
    assert "0 unread of 1 message" in done.text
    assert "Nothing here" in browser.get("/inbox?unread=yes").text
    assert "cannot be taken back" in browser.do("inbox.reply", id=came.id, body="hey").text
    sent = browser.done("inbox.reply", at="/inbox", id=came.id, body="hey", sure="yes")
    assert sent.status == 200
    assert "message.send" in browser.get("/outbox").text
    assert browser.get(f"/inbox/{came.id[:-4]}0000").status == 404


def test_U5_the_outbox_names_what_was_refused_and_what_waits_behind_it(
    console: ConsoleInThread,
) -> None:
    mesh, browser = console.up.daemon.api.node.mesh("team"), console.browser()
    first = mesh.state.set("a", 1).id
    mesh.state.set("a", 2)
    refuse(console, first)
    page = browser.get("/outbox").text
    assert "you may not &lt;b&gt;" in page
    assert "Behind it waits" in page
    assert "waits for" in page, "the second write of the same key"
    assert "No item is like that" in browser.get("/outbox?state=inflight").text
    sure = browser.done("outbox.drop", at="/outbox", id=first)
    assert "Others will not get this change" in sure.text
    retried = browser.done("outbox.retry", at="/outbox", id=first)
    assert f"holdfast outbox retry {first}" in retried.text
    assert "No item is like that" in browser.get("/outbox?state=dead").text
    dropped = browser.done("outbox.drop", at="/outbox", id=first, sure="yes")
    assert dropped.status == 200, dropped.text
    assert "No item is like that" not in browser.get("/outbox?state=aborted").text


def test_U5_readers_of_the_log_are_retired_only_when_that_is_meant(
    console: ConsoleInThread,
) -> None:
    node, browser = console.up.daemon.api.node, console.browser()
    node.mesh("team").state.set("b", 1)
    assert "Nobody has registered" in browser.get("/consumers").text
    node.log.add_consumer("audit")
    page = browser.get("/consumers").text
    assert "audit" in page
    assert "100 %" in page
    sure = browser.done("consumer.retire", at="/consumers", name="audit")
    assert "The log may then lose" in sure.text
    assert [one.name for one in node.log.consumers()] == ["audit"]
    done = browser.done("consumer.retire", at="/consumers", name="audit", sure="yes")
    assert "holdfast consumer retire audit" in done.text
    assert node.log.consumers() == []
