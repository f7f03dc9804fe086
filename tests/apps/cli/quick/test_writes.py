"""The quick path of `state set` and `memory set`: what the full command writes and answers, at half
of the cost.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.apps.cli.quick import writes
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.metrics import COMMAND
from holdfast.rules.errors import OutcomeUnknown
from holdfast.rules.ids import id_text
from holdfast.rules.rows import WarningRow
from support.cli import Cli, Outcome

STAMP = re.compile(r'("lamport":|"offset":|at )\d+')
PLAIN = ("text", "", "two\nlines", "żółw 🐢", '"', "1", '{"a":1}')


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every command, whether the quick path answered it."""
    answered: list[bool] = []
    run = writes.run

    def noting(argv: list[str]) -> int | None:
        code = run(argv)
        answered.append(code is not None)
        return code

    monkeypatch.setattr(writes, "run", noting)
    return answered


def both(cli: Cli, *words: str, env: dict[str, str] | None = None) -> Outcome:
    """What the two paths say, which must be the same but for id and stamp."""
    short = cli(*words, code=None, env=env)
    full = cli(*words, code=None, env=env, full=True)
    assert short.code == full.code
    assert STAMP.sub("", short.masked) == STAMP.sub("", full.masked)
    assert STAMP.sub("", short.err) == STAMP.sub("", full.err)
    return short


@pytest.mark.parametrize("family", ["state", "memory"])
def test_U2_both_paths_write_the_same(cli: Cli, taken: list[bool], family: str) -> None:
    for number, value in enumerate(PLAIN):
        key = f"key {number}"
        for more in ((), ("--json",), ("--mesh", "team", "--json"), (f"--home={cli.home}",)):
            found = both(cli, family, "set", key, value, *more)
            assert found.code == 0
            if "--json" in more:
                assert found.json["op"] == f"{family}.set"
                assert found.json["outcome"] == "applied"
        assert cli(family, "get", key, "--json").json["value"] == value
    assert all(taken)
    with holdfast.open(cli.home) as node:
        entries = list(node.log.range(1, 100))
        assert len(entries) == 8 * len(PLAIN)
        assert {entry.op for entry in entries} == {f"{family}.set"}


def test_U2_what_is_not_plain_is_left_to_the_full_command(cli: Cli, taken: list[bool]) -> None:
    cli("state", "set", "k", "v")
    taken.clear()
    for words in (
        *(("k", "1", "--json-value"), ("k", "1", "--expect", "1@ana"), ("k", "1", "--create-only")),
        *(("k", "-"), ("k", "-1"), ("k",), ("k", "v", "w"), ("", "v"), ("k" * 2000, "v")),
        *(("k", "v", "--mesh", "none"), ("k", "v", "--mesh", ""), ("k", "v", "--help")),
        *(("k", "v", "--home", str(cli.home / "none")), ("k", "v\udcff"), ("k", "a\0b")),
    ):
        both(cli, "state", "set", *words)
    assert not any(taken)
    both(cli, "state", "set", "k", "v", env={"HOLDFAST_HOME": ""})
    with holdfast.open(cli.home) as node:
        node.create_mesh("second")
    both(cli, "state", "set", "k", "v")
    assert not any(taken)
    assert both(cli, "state", "set", "k", "v", env={"HOLDFAST_MESH": "second"}).code == 0
    assert taken[-1]


def test_S1_a_home_that_is_not_in_order_is_opened_by_the_full_command(
    cli: Cli, taken: list[bool]
) -> None:
    cli.home.joinpath("blobs").chmod(0o755)
    found = cli("state", "set", "k", "v")
    assert "warning:" in found.err
    assert taken == [False]
    assert cli("state", "set", "k", "v").err == "set 'k' in team at 2@ana\n"
    assert taken == [False, True]


def test_S10_a_warning_is_told_with_the_answer_and_once(cli: Cli, taken: list[bool]) -> None:
    def warn() -> None:
        row = WarningRow(
            mesh="team", type="task_claim_superseded", entity="t", by_peer="bo", at_lamport=7
        )
        with holdfast.open(cli.home) as node:
            node._engine.write("test", lambda tx: tx.warning_add(row))

    said = "warning: your claim on task t lost against that of bo\n"
    warn()
    assert cli("state", "set", "k", "v").err == f"set 'k' in team at 1@ana\n{said}"
    assert cli("state", "set", "k", "v").err == "set 'k' in team at 2@ana\n"
    warn()
    short = cli("state", "set", "k", "v", "--json").json["warnings"]
    warn()
    assert short == cli("state", "set", "k", "v", "--json", full=True).json["warnings"]
    assert taken == [True] * 3


def test_S3_a_write_of_which_nobody_knows_is_not_made_again(
    cli: Cli, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the disk had failed during the commit: the change is there, and its caller is told that
    it may be.
    """
    write = NodeEngine.write

    def torn(engine: NodeEngine, name: str, work: Callable[..., Any]) -> Any:
        write(engine, name, work)
        raise OutcomeUnknown("the disk failed during the commit")

    monkeypatch.setattr(NodeEngine, "write", torn)
    found = cli("state", "set", "k", "v", code=124)
    monkeypatch.undo()
    with holdfast.open(cli.home) as node:
        ids = [id_text(entry.id) for entry in node.log.range(1, 100)]
    assert len(ids) == 1
    assert f"hint: retry with --id {ids[0]}: it is applied once at most\n" in found.err


def test_U2_a_fault_of_ours_is_told_as_one_and_the_home_is_closed(
    cli: Cli, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(NodeEngine, "write", fail)
    said = cli("state", "set", "k", "v", code=1)
    assert "Traceback" in said.err
    assert "please report it" in said.err
    assert cli("state", "set", "k", "v", "--json", code=1).error["code"] == "internal"
    assert taken == [True] * 2
    assert not list((cli.home / "processes").iterdir())


def test_S16_a_lone_write_counts_and_closes_as_any_other(cli: Cli, taken: list[bool]) -> None:
    token = COMMAND.set(None)
    try:
        cli("state", "set", "k", "v")
    finally:
        COMMAND.reset(token)
    assert taken == [True]
    lines = (cli.home / "logs" / "metrics.jsonl").read_text().splitlines()
    assert '"command":"state set"' in lines[-2]
    assert '"state.set":{"count":1' in lines[-1]
    assert not list((cli.home / "processes").iterdir())
    assert (cli.home / "data.db-wal").exists() is False


@pytest.mark.parametrize("family", ["state", "memory"])
def test_U2_a_process_of_its_own_says_the_same_and_ends(cli: Cli, family: str) -> None:
    done = cli.process(family, "set", "k", "v", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["lamport"] == 1
    read = cli.process(family, "get", "k")
    assert (read.code, read.out, read.err) == (0, "v\n", "")
    closed = cli.start("state", "set", "k", "w", stdout=_closed_pipe())
    assert closed.wait(60) == 141
    closed.communicate()
    assert cli("state", "get", "k").out == "w\n"


def _closed_pipe() -> int:
    ours, theirs = os.pipe()
    os.close(ours)
    return theirs


def _has_open(pid: int, file: Path) -> bool:
    """Whether a process has come so far; before that a signal ends it with nothing to close."""
    with suppress(FileNotFoundError):
        return any(one.resolve() == file for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_S16_a_signal_while_it_waits_closes_the_home(cli: Cli) -> None:
    """It waits for the write lock that is held here, so the signal comes in the middle of it."""
    with holdfast.open(cli.home) as node:

        def signalled(tx: object) -> None:
            with cli.start("state", "set", "k", "v") as waiting:
                while not _has_open(waiting.pid, cli.home / "data.db"):
                    assert waiting.poll() is None, waiting.communicate()
                waiting.send_signal(signal.SIGTERM)
                waiting.communicate()
                assert waiting.returncode == 143

        node._engine.write("test", signalled)
        assert len(list((cli.home / "processes").iterdir())) == 1
