"""Every verb that takes an id takes as much of it as tells it from others, and a shown number."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.node.core.intake import Intake
from holdfast.rules.envelope import decode
from holdfast.rules.id_prefix import prefix_span
from holdfast.rules.ids import id_text
from support import envelopes as e
from support.cli import Cli
from support.nodes import share
from support.source import START_MS
from support.stores import known_member

LINE_ENDS = re.compile(r"\x1b\[[01]m|\r")
# They differ in the tenth digit, as ids do that were made within seconds.
FIRST = "01890a5d-a196-774b-bcce-b302099a8057"
SECOND = "01890a5d-a296-774b-bcce-b302099a8057"


@pytest.fixture
def two_tasks(cli: Cli) -> Cli:
    cli("task", "create", "Fix the roof", "--id", FIRST)
    cli("task", "create", "Paint \x1b[2J the door", "--id", SECOND)
    return cli


@pytest.fixture
def shared(cli: Cli) -> Cli:
    with holdfast.open(cli.home, sync="normal") as node:
        share(node)
        bob = [known_member("b", name="bob")]
        node._engine.store.write(lambda tx: tx.known_members_put("team", bob))
        raws = [
            e.message_send(
                "topic", "news", text, lamport=at, id=e.make_id(at, START_MS + 60_000 * at)
            )
            for at, text in ((1, b"one"), (2, b"two"))
        ]
        delivered = dict.fromkeys(raws, b"B" * 16)
        node._engine.store.write(Intake(node._engine.ctx, raws, delivered=delivered))
    return cli


def test_U2_a_task_is_meant_by_the_first_digits_of_its_id(two_tasks: Cli) -> None:
    cli = two_tasks
    assert cli("task", "claim", "01890a5d-a1").err == "claimed 'Fix the roof'\n"
    assert cli("task", "show", "01890A5DA1", "--json").json["task"] == FIRST
    assert cli("task", "show", FIRST.replace("-", ""), "--json").json["task"] == FIRST
    assert "claim" in cli("task", "events", "01890a5d-a1").out
    for verb in ("release", "claim", "complete"):
        cli("task", verb, "01890a5da1")
    cli("task", "cancel", "01890a5da2")
    assert [row["status"] for row in cli("task", "list", "--json").json] == [
        "completed",
        "cancelled",
    ]


def test_U2_digits_that_begin_several_ids_get_a_list_of_what_they_may_mean(two_tasks: Cli) -> None:
    cli = two_tasks
    said = cli("task", "claim", "0189", code=2)
    assert said.err.splitlines() == [
        "error: '0189' is the beginning of 2 ids:",
        f"  {FIRST}  open  Fix the roof",
        f"  {SECOND}  open  Paint \\x1b[2J the door",
        "hint: write as much as tells them apart, as 01890a5d-a1 or 01890a5d-a2",
    ]
    error = cli("task", "claim", "0189", "--json", code=2).error
    assert error["code"] == "ambiguous_id"
    assert error["candidates"][0] == {"id": FIRST, "what": "open  Fix the roof"}
    # Nothing was taken on, and what the hint proposes works.
    assert {row["status"] for row in cli("task", "list", "--json").json} == {"open"}
    assert cli("task", "claim", "01890a5d-a1").code == 0


def test_U2_digits_of_another_family_or_mesh_mean_nothing(two_tasks: Cli) -> None:
    cli = two_tasks
    cli("mesh", "create", "other")
    assert cli("task", "show", "0189", "--mesh", "other", "--json", code=4).error["code"] == (
        "unknown_task"
    )
    assert cli("inbox", "read", "0189", "--json", code=4).error["code"] == "unknown_message"
    assert (
        cli("task", "show", "", "--mesh", "team", "--json", code=4).error["code"] == "unknown_task"
    )
    # In a table, `_` and `%` would stand for anything.
    for text in ("_", "%", "0189%", "0189*"):
        assert (
            cli("task", "show", text, "--mesh", "team", "--json", code=4).error["code"]
            == "unknown_task"
        )


def test_U2_a_message_is_meant_by_its_number_or_its_first_digits(shared: Cli) -> None:
    first, second = (row["id"] for row in shared("inbox", "list", "--json").json)
    assert shared("inbox", "read", "1").out == "one"
    assert shared("inbox", "read", second[:12]).out == "two"
    assert shared("inbox", "reply", "2", "thanks", "--json").json["kind"] == "dm"
    sent = shared("send", "again", "--dm", "bob", "--reply-to", "1").out.strip()
    with holdfast.open(shared.home, sync="normal") as node:
        raw = next(row.raw for row in node.log.range() if id_text(row.id) == sent)
    assert decode(raw).reply_to == first
    said = shared("inbox", "read", first[:4], code=2)
    assert "number 1  from bob to topic news" in said.err
    assert shared("inbox", "read", "3", "--json", code=4).error["code"] == "unknown_message"


def test_U2_an_item_of_the_outbox_is_meant_by_its_number_or_its_first_digits(shared: Cli) -> None:
    shared("state", "set", "k", "1", "--id", FIRST)
    shared("state", "set", "l", "2", "--id", SECOND)
    items = {row["id"]: row["number"] for row in shared("outbox", "list", "--json").json}
    assert shared("outbox", "show", str(items[FIRST]), "--json").json["id"] == FIRST
    assert shared("outbox", "retry", "01890a5d-a1", "--json").json["id"] == FIRST
    assert "pending  state.set l on broker:team" in shared("outbox", "drop", "0189", code=2).err
    assert shared("outbox", "drop", "01890a5d-a2", "--json").json["state"] == "aborted"
    assert shared("outbox", "show", "99", "--json", code=4).error["code"] == "unknown_message"


def test_U2_an_id_is_looked_for_in_an_index(two_tasks: Cli) -> None:
    asked: list[str] = []
    with holdfast.open(two_tasks.home) as node, node._engine.store.read() as tx:
        span = prefix_span("0189")
        assert span is not None
        connection: apsw.Connection = tx._con  # type: ignore[attr-defined]
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: asked.append(event["sql"]))
        tx.task_ids_within("team", span, 5)
        tx.inbox_ids_within(span, 5)
        tx.outbox_ids_within(None, span, 5)
        connection.trace_v2(0, None)
        assert len(asked) == 3
        for sql in asked:
            values = (0,) * (4 if "?4" in sql else sql.count("?"))
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
            assert [step[:6] for step in steps] == ["SEARCH"], (sql, steps)


@pytest.mark.parametrize("columns", [80, 60, 44, 40])
def test_U2_no_id_is_cut_or_broken_on_a_narrow_terminal(shared: Cli, columns: int) -> None:
    shared("task", "create", "A title that is far too long for any narrow terminal", "--id", FIRST)
    shared("state", "set", "k", "1", "--id", SECOND)
    for words, field in (
        (("task", "list"), "task"),
        (("inbox", "list"), "id"),
        (("outbox", "list"), "id"),
    ):
        ids = {row[field] for row in shared(*words, "--json").json}
        shown = shared.on_a_terminal(*words, columns=columns)
        lines = shown.out.split("not shown")[0].splitlines()
        assert all(any(id in line.split() for line in lines) for id in ids), shown.out
        assert max(map(len, (LINE_ENDS.sub("", line) for line in lines))) <= max(columns, 44)
        assert "not shown, for want of room: " in shown.out


def test_U2_the_numbers_and_ids_of_a_list_work_whatever_the_home(
    shared: Cli, tmp_path: Path
) -> None:
    other = Cli(tmp_path / "nowhere")
    assert other("inbox", "read", "1", "--home", str(shared.home)).out == "one"
