"""`watch` and `log tail -f`: changes as they come, on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import IO

import pytest

import holdfast
from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Mesh, Node
from holdfast.rules.limits import HOUR_MS
from support import envelopes as e
from support.cli import TIME_MASK, Cli
from support.envelopes import MODEL
from support.nodes import share, store_of
from support.source import HandClock


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="normal") as made:
        made.create_mesh("team")
        yield made


@pytest.fixture
def team(node: Node) -> Mesh:
    return node.mesh("team")


@pytest.fixture
def cli(node: Node) -> Cli:
    return Cli(node.home)


@contextmanager
def watching(cli: Cli, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The command as a process that has begun: it goes on after what it has shown."""
    with cli.start(*words) as running:
        assert running.stdout is not None
        try:
            yield running, running.stdout
        finally:
            running.kill()


def test_U2_a_watch_shows_what_comes_until_ctrl_c_and_says_where_to_go_on(
    cli: Cli, team: Mesh
) -> None:
    """One process, because it takes a signal; the rest of the verbs run in this one."""
    team.state.set("build/linux", "red")
    with watching(cli, "state", "watch", "build/", "--since", "start") as (running, shown):
        assert shown.readline().endswith(b"  1@ana  state.set  build/linux  red\n")
        team.memory.set("build/other", 1)
        team.state.set("build/linux", {"green": True})
        assert shown.readline().endswith(b'  3@ana  state.set  build/linux  {"green":true}\n')
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert running.stderr is not None
        assert running.stderr.read() == b"stopped; go on with --since 1:3\n"
    team.state.delete("build/linux")
    again = cli("state", "watch", "build/", "--since", "1:3", "--limit", "1")
    assert again.masked == f"4  {TIME_MASK}  4@ana  state.delete  build/linux\n"


def test_U2_every_family_has_a_watch(cli: Cli, team: Mesh) -> None:
    task = team.tasks.create("Paint the fence").task
    team.tasks.claim(task)
    team.memory.set("lunch", "soup", tags=["food"])
    team.files.share("a.txt", b"x")
    team.vectors.store("v", [1, 2], model=MODEL)
    team.facts.append("s/1", "is", {"a": 1})
    team.audit.append("activityLog", {"did": "paint"})

    def seen(*words: str, limit: int = 1) -> list[dict[str, object]]:
        done = cli(*words, "--since", "start", "--limit", str(limit), "--json")
        return [json.loads(line) for line in done.out.splitlines()]

    assert [one["op"] for one in seen("task", "watch", limit=2)] == ["task.create", "task.claim"]
    (created,) = seen("task", "watch", task[:12])
    assert (created["entity"], created["cursor"], created["offset"]) == (task, "1:1", 1)
    assert seen("memory", "watch", "lu")[0]["body"] == {"value": "soup", "tags": ["food"]}
    assert seen("memory", "watch", "--scope", "self")[0]["owner"] == "ana"
    assert seen("file", "watch")[0]["entity"] == "a.txt"
    assert seen("vector", "watch", "--scope", "self")[0]["entity"] == "v"
    shown = cli("fact", "watch", "s/", "--since", "start", "--limit", "1").out
    assert shown.endswith('  6@ana  fact.append  s/1  is  {"a":1}\n')
    assert seen("audit", "watch", "act")[0]["entity"] == "activityLog"
    assert "Paint the fence" in cli("task", "watch", "--since", "0", "--limit", "1").out


def test_U2_a_watch_begins_at_a_time(tmp_path: Path) -> None:
    clock = HandClock(round(time() * 1000) - 3 * HOUR_MS)
    home = tmp_path / "old"
    with holdfast.open(home, peer="ana", create=True, sync="normal", source=clock) as node:
        team = node.create_mesh("team")
        share(node)
        team.state.set("three hours", 1)
        _bring(node, 1)
        clock.advance(2 * HOUR_MS)
        team.state.set("one hour", 1)
        _bring(node, 2)
    cli = Cli(home)
    for since, count in (("2h", 1), ("4h", 2), ("yesterday", 2), ("now", 0)):
        found = cli("log", "tail", "--since", since, "--op", "state", "--json").json
        assert len(found) == count, since
    done = cli("state", "watch", "--since", "2h", "--limit", "1", "--json")
    assert json.loads(done.out)["entity"] == "one hour"
    arrived = cli("inbox", "watch", "--since", "2h", "--limit", "1", "--json")
    assert json.loads(arrived.out)["preview"] == "2"


def _bring(node: Node, number: int) -> None:
    raw = e.message_send("topic", "news", b"%d" % number, lamport=50 + number)
    store_of(node).write(Intake(node._engine.ctx, [raw], delivered={raw: bytes(16)}))


def test_U2_a_line_can_hold_nothing_that_a_terminal_obeys(cli: Cli, team: Mesh) -> None:
    team.state.set("k\x1b[31m", "two\nlines \x1b[31m")
    shown = cli("state", "watch", "--since", "start", "--limit", "1").raw
    assert shown.count(b"\n") == 1
    assert b"\x1b" not in shown


def test_U2_the_log_is_narrowed_down_to_meshes_ops_and_prefixes(
    cli: Cli, node: Node, team: Mesh
) -> None:
    other = node.create_mesh("other")
    team.state.set("a/1", 1)
    team.state.delete("a/1")
    other.state.set("a/2", 2)
    task = team.tasks.create("t").task
    team.tasks.cancel(task)

    def offsets(*words: str) -> list[int]:
        return [entry["offset"] for entry in cli("log", "tail", *words, "--json").json]

    assert offsets("--op", "state.set") == [1, 3]
    assert offsets("--op", "task", "--op", "state.delete") == [2, 4, 5]
    assert offsets("--prefix", "a/", "--mesh", "team") == [1, 2]
    assert offsets("--since", "1:2") == [3, 4, 5]
    assert offsets("--since", "2", "--op", "task", "--limit", "1") == [4]
    followed = cli("log", "tail", "-f", "--since", "3", "--op", "task", "--limit", "2")
    assert [line.split("  ")[3:5] for line in followed.out.splitlines()] == [
        ["team", "task.create"],
        ["team", "task.cancel"],
    ]
    first = cli("log", "tail", "-f", "-n", "2", "--json", "--limit", "1", "--since", "start")
    assert json.loads(first.out)["cursor"] == "1:1"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("state", "watch", "--since", "2 fortnights"), 2, "no place to begin"),
        (("state", "watch", "--since", "7"), 2, "past the end of the log at 0"),
        (("state", "watch", "--since", "2:0"), 1, "counts in epoch 1"),
        (("log", "tail", "-f", "--op", "state.sat"), 2, "there is no op"),
        (("memory", "watch", "--scope", "us"), 2, "scope 'us'"),
        (("inbox", "watch", "--since", "x"), 2, "no place to begin"),
        (("inbox", "watch", "--since", "1:2"), 2, "no number of a message"),
    ],
)
def test_U2_a_watch_that_makes_no_sense_says_why(
    cli: Cli, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in cli(*words, code=code).err
