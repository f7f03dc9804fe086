"""`holdfast link`, with and without a daemon."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.links import pull, receive
from holdfast.node.links.pull import PULL_LOCK
from holdfast.node.settings import Settings
from holdfast.protocol.log_wire import Batch
from holdfast.rules.errors import Unreachable
from holdfast.service.instance_lock import DaemonLock
from holdfast.storage.files.home import HomePaths
from support.cli import Cli
from support.daemon import PATIENCE_S, UpInThread, make_home, running
from support.envelopes import fact_append

AWAY = "https://127.0.0.1:9"
"""Nobody listens on the discard port."""


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[UpInThread]:
    """Another node, served by TLS."""
    home = make_home(tmp_path / "bob", "bob", "team")
    with running(home, Settings(listen="127.0.0.1:0")) as up:
        yield up


def trusted(cli: Cli, bob: UpInThread) -> None:
    """Both know each other, and ana may read."""
    card = cli("peer", "card").out.strip()
    bob.daemon.api.trust.trust(card, reads=["team"])
    cli("peer", "trust", bob.card)


def card_only(cli: Cli, tmp_path: Path, name: str = "bob") -> None:
    """A zone is trusted that nobody serves."""
    home = make_home(tmp_path / name, name, "team")
    cli("peer", "trust", Cli(home)("peer", "card").out.strip())


def waited(up: UpInThread, so: Callable[[], Any]) -> Any:
    """Waits for something that follows a commit of the daemon's store or a new state of a link."""
    moved = threading.Condition()

    def tell(*_: object) -> None:
        with moved:
            moved.notify_all()

    api = up.daemon.api
    api.engine.store.on_commit(tell)
    assert api.link_manager is not None
    api.link_manager._on_change = tell
    with moved:
        assert moved.wait_for(so, PATIENCE_S)


# --- without a daemon -----------------------------------------------------------------------------


def test_U2_a_link_is_stored_and_begins_with_the_daemon(cli: Cli, tmp_path: Path) -> None:
    card_only(cli, tmp_path)
    done = cli("link", "add", AWAY, "--peer", "bob")
    assert done.out == "bob\n"
    assert "bob pulls team from bob: only what bob itself wrote; --carries any" in done.err
    assert "it begins with: holdfast up" in done.err
    said = cli("link", "list")
    assert said.out.split("\n")[0].split() == [
        *("NAME", "ZONE", "MESHES", "CARRIES", "STATE", "LAG", "CURSOR", "QUARANTINED", "TROUBLE")
    ]
    assert "not running" in said.out
    (found,) = cli("link", "list", "--json").json
    assert (found["name"], found["state"], found["cursor"]) == ("bob", "not running", 0)
    assert (found["carries"], found["meshes"]) == (["own"], ["team"])


def test_U2_everything_that_a_link_can_be_told(cli: Cli, tmp_path: Path) -> None:
    card_only(cli, tmp_path)
    cli("mesh", "create", "other")
    words = "--name b2 --mesh team --mesh other --subject pump: --class facts --carries own"
    done = cli("link", "add", AWAY, "--peer", "bob", *words.split(), "--carries", "cyn", "--paused")
    assert "what bob itself and cyn wrote" in done.err
    assert "holdfast up" not in done.err
    found = cli("link", "show", "b2", "--json").json
    assert found["meshes"] == ["other", "team"]
    assert (found["subjects"], found["classes"]) == (["pump:"], ["facts"])
    assert sorted(found["carries"]) == ["cyn", "own"]
    assert (found["paused"], found["state"]) == (True, "paused")
    shown = cli("link", "show", "b2")
    assert "state            paused\n" in shown.out


def test_U2_a_home_with_several_meshes_must_say_which(cli: Cli, tmp_path: Path) -> None:
    card_only(cli, tmp_path)
    cli("mesh", "create", "other")
    error = cli("link", "add", AWAY, "--peer", "bob", "--json", code=2).error
    assert "other, team" in error["message"]
    assert "--mesh" in error["hint"]
    assert cli("link", "add", AWAY, "--peer", "bob", "--mesh", "other").out == "bob\n"
    found = cli("link", "show", "bob", "--json").json
    assert found["meshes"] == ["other"]


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["add", AWAY, "--peer", "eve"], 4, "unknown_zone"),
        (["add", "http://10.0.0.1:9", "--peer", "bob"], 2, "bad_input"),
        (["add", AWAY, "--peer", "bob", "--name", "B"], 2, "bad_input"),
        (["add", AWAY, "--peer", "bob", "--mesh", "no"], 4, "unknown_mesh"),
        (["add", AWAY, "--peer", "bob", "--carries", "any", "--carries", "x"], 2, "bad_input"),
        (["add", AWAY, "--peer", "bob", "--class", "no"], 2, "usage"),
        (["add", AWAY], 2, "usage"),
        (["show", "no"], 4, "unknown_link"),
        (["pause", "no"], 4, "unknown_link"),
        (["resume", "no"], 4, "unknown_link"),
        (["remove", "no"], 4, "unknown_link"),
        (["quarantine", "no"], 4, "unknown_link"),
        (["retry", "no"], 4, "unknown_link"),
        (["drop", "no", "--all"], 4, "unknown_link"),
        (["drop", "no"], 2, "bad_input"),
    ],
)
def test_U2_what_cannot_be_is_refused_by_name(
    cli: Cli, tmp_path: Path, words: list[str], code: int, name: str
) -> None:
    card_only(cli, tmp_path)
    error = cli("link", *words, "--json", code=code).error
    assert error["code"] == name
    assert error["hint"] or name == "bad_input"


def test_U2_a_link_is_paused_and_resumed_in_the_store(cli: Cli, tmp_path: Path) -> None:
    card_only(cli, tmp_path)
    cli("link", "add", AWAY, "--peer", "bob")
    assert "bob is paused at offset 0" in cli("link", "pause", "bob").err
    assert cli("link", "list", "--json").json[0]["state"] == "paused"
    done = cli("link", "resume", "bob", "--json").json
    assert (done["paused"], done["daemon"]) == (False, False)


def test_Z6_a_source_that_cannot_be_told_of_the_end_is_named(cli: Cli, tmp_path: Path) -> None:
    card_only(cli, tmp_path)
    cli("link", "add", AWAY, "--peer", "bob")
    done = cli("link", "remove", "bob")
    assert done.out == "bob\n"
    assert "bob was not told" in done.err
    assert "holdfast consumer retire zone:ana/bob" in done.err
    assert cli("link", "list").err.startswith("no links")


def test_Z5_nothing_is_skipped_when_the_source_cannot_be_asked(cli: Cli, tmp_path: Path) -> None:
    card_only(cli, tmp_path)
    cli("link", "add", AWAY, "--peer", "bob", "--paused")
    error = cli("link", "resume", "bob", "--skip-missing", "--json", code=1).error
    assert error["code"] == "unreachable"
    assert cli("link", "list", "--json").json[0]["state"] == "paused"


def test_Z7_what_a_link_set_aside_is_shown_tried_again_and_given_up(
    cli: Cli, tmp_path: Path
) -> None:
    card_only(cli, tmp_path)
    cli("link", "add", AWAY, "--peer", "bob")
    good = fact_append("s", "is", 1, origin="bob", lamport=2**60)
    with holdfast.open(cli.home, sync="normal") as node:
        batch = Batch(1, 1, 3, 1, 3, [1, 2, 3], [b"\xc1", good, b"\xc1\xc1"])
        assert receive.receive_batch(node._engine, "bob", batch).quarantined == 3
    rows = cli("link", "quarantine", "bob", "--json").json
    assert [row["code"] for row in rows] == ["bad_envelope", "bad_stamp", "bad_envelope"]
    assert [row["entity"] for row in rows] == [None, "s", None]
    assert rows[0]["raw"] == "wQ=="
    assert "BAD" not in cli("link", "quarantine", "bob").out
    done = cli("link", "retry", "bob")
    assert "0 passed, 3 are still refused" in done.err
    first = str(rows[0]["number"])
    assert cli("link", "drop", "bob", first, "--json").json["dropped"] == 1
    assert cli("link", "drop", "bob", first, "--json", code=2).error["code"] == "bad_key"
    assert cli("link", "drop", "bob", "--all", "--json").json["dropped"] == 2
    assert cli("link", "quarantine", "bob").err.startswith("bob has brought nothing")


# --- with one -------------------------------------------------------------------------------------


def test_U2_a_command_is_carried_out_by_the_daemon_at_once(cli: Cli, bob: UpInThread) -> None:
    trusted(cli, bob)
    far = bob.daemon.api.node
    far.mesh("team").facts.append("pump", "is", "on")
    with running(cli.home) as up:
        here = up.daemon.api.node
        done = cli("link", "add", bob.tls, "--peer", "bob")
        assert "holdfast up" not in done.err
        waited(up, lambda: here.log.head().offset == 1 and _status(up)["state"] == "live")
        (found,) = cli("link", "list", "--json").json
        assert (found["state"], found["cursor"], found["lag"]) == ("live", 1, 0)
        assert (found["received"], found["new"]) == (1, 1)
        assert " live " in cli("link", "list").out
        assert cli("link", "pause", "bob", "--json").json["daemon"] is True
        waited(up, lambda: _status(up)["state"] == "paused")
        assert cli("link", "show", "bob", "--json").json["state"] == "paused"
        cli("link", "resume", "bob")
        far.mesh("team").facts.append("pump", "is", "off")
        waited(up, lambda: here.log.head().offset == 2)
        done = cli("link", "remove", "bob")
        assert "bob no longer waits for it" in done.err
        assert cli("link", "list", "--json").json == []
        assert far.log.consumers() == []


def test_P6_content_that_is_named_and_not_here_is_brought(cli: Cli, bob: UpInThread) -> None:
    trusted(cli, bob)
    content = bytes(range(256)) * 512
    bob.daemon.api.node.mesh("team").files.share("large.bin", content)
    with running(cli.home) as up:
        here = up.daemon.api.node
        cli("link", "add", bob.tls, "--peer", "bob")
        waited(up, lambda: here.log.head().offset == 1 and _status(up)["state"] == "live")
        sha256 = here.mesh("team").files.info("large.bin", peer="bob").sha256
        # As after a restore from a snapshot, which has no content.
        (blob,) = (path for path in cli.home.rglob(f"*{sha256[-8:]}*") if path.is_file())
        blob.unlink()
        done = cli("link", "objects", "bob", "--json").json
        assert (done["name"], done["objects"], done["missing"]) == ("bob", 1, 0)
        assert blob.read_bytes() == content
        again = cli("link", "objects", "bob")
        assert again.out == "0\n"
        assert "brought 0 objects" in again.err
    refused = cli("link", "objects", "nobody", "--json", code=4)
    assert refused.error["code"] == "unknown_link"


def test_U2_a_link_that_is_refused_says_why(cli: Cli, bob: UpInThread) -> None:
    cli("peer", "trust", bob.card)
    with running(cli.home) as up:
        cli("link", "add", bob.tls, "--peer", "bob")
        waited(up, lambda: _status(up)["state"] == "refused")
        found = cli("link", "show", "bob", "--json").json
        assert found["last_error"]["code"] == "zone_not_trusted"
        assert found["retry_at"] is not None
        assert found["trouble"] == f"zone_not_trusted: {found['last_error']['message']}"
        assert "zone_not_trusted: " in cli("link", "list").out
        shown = cli("link", "show", "bob").out
        assert "trouble          zone_not_trusted: " in shown


def _status(up: UpInThread) -> dict[str, Any]:
    import msgspec

    link_manager = up.daemon.api.link_manager
    assert link_manager is not None
    (found,) = link_manager.status()
    said: dict[str, Any] = msgspec.to_builtins(found)
    return said


# --- one pull, on demand --------------------------------------------------------------------------


def linked(cli: Cli, bob: UpInThread, *words: str) -> None:
    trusted(cli, bob)
    cli("link", "add", bob.tls, "--peer", "bob", *words)


def write(bob: UpInThread, *subjects: str) -> None:
    for subject in subjects:
        bob.daemon.api.node.mesh("team").facts.append(subject, "is", 1)


def test_Z2_a_link_is_pulled_once_without_a_daemon(cli: Cli, bob: UpInThread) -> None:
    linked(cli, bob)
    write(bob, "a", "b")
    done = cli("link", "pull", "bob")
    assert done.out == "2\n"
    assert "bob is at offset 2 of bob: 2 new, 0 known" in done.err
    with holdfast.open(cli.home) as node:
        assert [entry.entity for entry in node.log.range()] == ["a", "b"]
    said = cli("link", "pull", "bob", "--json").json
    assert (said["new"], said["cursor"], said["before"], said["by_daemon"]) == (0, 2, 2, False)
    write(bob, "c")
    assert cli("link", "pull", "bob", "--json").json["new"] == 1
    # The source knows what was stored, though nobody is connected any more.
    (reader,) = bob.daemon.api.node.log.consumers()
    assert (reader.frontier, reader.lag) == (3, 0)


def test_Z2_a_link_that_is_paused_is_pulled_once_and_stays_paused(
    cli: Cli, bob: UpInThread
) -> None:
    linked(cli, bob, "--paused")
    write(bob, "a")
    assert cli("link", "pull", "bob").out == "1\n"
    assert cli("link", "show", "bob", "--json").json["state"] == "paused"


def test_Z2_a_pull_goes_through_the_daemon_that_runs(cli: Cli, bob: UpInThread) -> None:
    linked(cli, bob)
    with running(cli.home):
        write(bob, *(f"s{number}" for number in range(50)))
        said = cli("link", "pull", "bob", "--json").json
        assert (said["by_daemon"], said["cursor"]) == (True, 50)
        cli("link", "pause", "bob")
        error = cli("link", "pull", "bob", "--json", code=7).error
        assert "paused" in error["message"]
        assert "holdfast link resume bob" in error["hint"]


def test_Z2_a_pull_that_cannot_be_done_says_why(cli: Cli, bob: UpInThread, tmp_path: Path) -> None:
    assert cli("link", "pull", "no", "--json", code=4).error["code"] == "unknown_link"
    linked(cli, bob)
    write(bob, "a")
    bob.daemon.api.trust.block("ana")
    refused = cli("link", "pull", "bob", "--json", code=7).error
    with running(cli.home):
        assert cli("link", "pull", "bob", "--json", code=7).error == refused
        bob.stop()
        assert cli("link", "pull", "bob", "--json", code=1).error["code"] == "unreachable"
    assert cli("link", "pull", "bob", "--json", code=1).error["code"] == "unreachable"


def test_Z2_two_never_pull_at_once(cli: Cli, bob: UpInThread) -> None:
    """Another `link pull` is refused, and a daemon waits until the one that runs gives way."""
    linked(cli, bob)
    write(bob, "a")
    with closing(DaemonLock(HomePaths(cli.home), file=PULL_LOCK)) as lock:
        error = cli("link", "pull", "bob", "--json", code=5).error
        assert (error["code"], str(os.getpid()) in error["message"]) == ("already_exists", True)
        with running(cli.home) as up:
            manager = up.daemon.api.link_manager
            assert manager is not None
            assert manager.status() == []
            lock.close()
            waited(up, lambda: [one.cursor for one in manager.status()] == [1])


def test_Z2_a_pull_without_a_daemon_gives_way_to_one_that_starts(
    cli: Cli, bob: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked(cli, bob)
    write(bob, "a", "b")
    begin, store = pull._begin_once, receive.receive_batch
    with ExitStack() as ending:
        started: list[UpInThread] = []

        def begins(*given: Any) -> Any:
            started.append(ending.enter_context(running(cli.home)))
            return begin(*given)

        def stores(engine: Any, *given: Any, **more: Any) -> Any:
            if not started or engine is not started[0].daemon.api.engine:
                raise Unreachable("the process that pulls alone gets nothing")
            return store(engine, *given, **more)

        monkeypatch.setattr(pull, "_begin_once", begins)
        monkeypatch.setattr(receive, "receive_batch", stores)
        said = cli("link", "pull", "bob", "--json").json
        assert (said["by_daemon"], said["cursor"], len(started)) == (True, 2, 1)


def test_Z2_a_pull_that_gets_nothing_gives_up(
    cli: Cli, bob: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked(cli, bob)
    write(bob, "a", "b")

    def stores(*given: Any, **more: Any) -> Any:
        raise Unreachable("the line is down")

    monkeypatch.setattr(receive, "receive_batch", stores)
    error = cli("link", "pull", "bob", "--patience", "1", "--json", code=1).error
    assert error["code"] == "unreachable"
    assert "offset 0 of 2" in error["message"]
    assert "the line is down" in error["message"]
