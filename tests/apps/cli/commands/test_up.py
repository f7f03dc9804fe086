"""`holdfast up` and `down`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.settings import Settings
from holdfast.service import instance_lock
from holdfast.service.instance_lock import daemon_note
from holdfast.storage.files.home import HomePaths, socket_path
from support.broker_up import broker_at
from support.cli import Cli
from support.daemon import PATIENCE_S, ask, make_home, running
from support.waiting import until


@pytest.fixture(autouse=True)
def _leave_nothing_running(cli: Cli) -> Iterator[None]:
    yield
    note = daemon_note(HomePaths(cli.home))
    if note is not None:
        os.kill(note.pid, signal.SIGKILL)


def test_U4_up_tells_people_where_it_listens_and_who_it_is(cli: Cli) -> None:
    words = ("up", "--log-format=text", "--tcp=127.0.0.1:0", "--listen=127.0.0.1:0")
    with cli.start(*words) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        said = [running.stderr.readline().decode().rstrip("\n") for _ in range(5)]
        assert said[0] == f"serving {cli.home}"
        assert said[1] == f"listening on unix:{socket_path(HomePaths(cli.home))}"
        tcp, tls = (line.removeprefix("listening on ") for line in said[2:4])
        assert said[4].startswith("card ana:ed25519:")
        assert tcp.startswith("http://127.0.0.1:")
        assert tls.startswith("https://127.0.0.1:")
        assert not tcp.endswith(":0")
        for address in (tcp, tls):
            assert ask(address, "GET", "/readyz").status == 200
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
        ended = running.stderr.read().decode().splitlines()
        assert [line.partition(" ")[2] for line in ended] == ["info: stopping", "info: stopped"]
        assert running.stdout.read() == b"", "a daemon has no answer, so nothing is data"


def test_U4_a_daemon_that_is_up_freezes_what_stays(cli: Cli) -> None:
    """A full collection of all of it would hold the loop up, and a voter is silent meanwhile."""
    asked = (
        "import atexit, gc, runpy, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count(), file=sys.stderr))\n"
        f"sys.argv = ['holdfast', 'up', '--home', {str(cli.home)!r}, '--ttl', '1ms']\n"
        "runpy.run_module('holdfast', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, timeout=PATIENCE_S)
    assert ended.returncode == 0
    assert int(ended.stderr.split()[-1]) > 10_000, "most of what a daemon has loaded"


def test_U4_a_running_daemon_takes_up_its_settings_by_command_and_by_signal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text("")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    with cli.start("up", "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        json.loads(running.stdout.readline())
        config.write_text('hook_disk = ["true"]')
        assert cli("reload").err == "reloaded: hook_disk\n"
        config.write_text("nothing of the kind")
        assert cli("reload", "--json", code=2).error["code"] == "bad_input"
        config.write_text('listen = "127.0.0.1:0"')
        assert cli("reload", "--json").json == {"changed": ["hook_disk"], "restart": ["listen"]}
        config.write_text('hook_link = ["true"]')
        running.send_signal(signal.SIGHUP)
        said = json.loads(running.stderr.readline())
        assert said["message"] == "reloaded: hook_link"
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
    assert cli("reload", "--json", code=3).error["code"] == "no_daemon"


def test_U4_a_throw_away_node_ends_by_itself_and_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    words = [sys.executable, "-m", "holdfast", "up", "--ephemeral", "--json", "--peer", "bob"]
    ran = subprocess.run([*words, "--ttl", "100ms"], capture_output=True, timeout=PATIENCE_S)
    ready = json.loads(ran.stdout.splitlines()[0])
    assert (ran.returncode, ready["peer"]) == (0, "bob")
    assert Path(ready["home"]).parent == tmp_path
    assert list(tmp_path.glob("holdfast-*")) == []
    named = f"--home={cli.home}"
    assert cli("up", named, "--ephemeral", "--json", code=2).error["code"] == "bad_input"
    assert cli("up", "--peer", "bob", "--json", code=2).error["code"] == "bad_input"
    assert cli("up", "--ttl", "0s", "--json", code=2).error["code"] == "bad_input"


def test_U4_up_tells_programs_one_event_in_a_line(cli: Cli) -> None:
    with cli.start("up", "--json", "--no-socket", "--tcp", "localhost:0") as running:
        assert running.stdout is not None
        ready = json.loads(running.stdout.readline())
        assert ready["event"] == "ready"
        assert (ready["peer"], ready["pid"]) == ("ana", running.pid)
        assert len(ready["listening"]) == 1
        assert not socket_path(HomePaths(cli.home)).exists()
        running.send_signal(signal.SIGINT)
        assert [json.loads(line)["event"] for line in running.stdout] == ["stopping", "stopped"]
        assert running.wait(PATIENCE_S) == 130


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("--tcp", "0.0.0.0:80"), 2, "--listen"),
        (("--tcp", "nonsense"), 2, "HOST:PORT"),
        (("--no-socket",), 2, "--listen"),
        (("--disk-limit", "lots"), 2, "20GiB"),
        (("--tls-cert", "x", "--listen", "127.0.0.1:0"), 2, "both"),
        (("--tls-cert", "x", "--tls-key", "y", "--listen", "127.0.0.1:0"), 2, "certificate"),
        (("--home", "nowhere"), 4, "holdfast init"),
    ],
)
def test_U2_what_cannot_be_served_is_refused_with_what_to_do(
    cli: Cli, words: tuple[str, ...], code: int, named: str
) -> None:
    assert named in cli("up", *words, "--json", code=code).error["hint"]


def test_U7_settings_may_stand_in_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("lissten = '127.0.0.1:0'\n")
    env = {"HOLDFAST_CONFIG": str(file)}
    refused = cli("up", "--json", code=2, env=env).error
    assert "lissten" in refused["message"]
    assert "listen" in refused["hint"]
    file.write_text("listen = '127.0.0.1:0'\nsocket = false\n")
    with cli.start("up", "--json", env=env) as running:
        assert running.stdout is not None
        (address,) = json.loads(running.stdout.readline())["listening"]
        assert address.startswith("https://")
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0


def test_U4_detached_it_returns_when_it_answers_and_down_ends_it(cli: Cli) -> None:
    up = cli("up", "--listen", "127.0.0.1:0", "--detach")
    address = up.out.strip()
    assert address.startswith("https://127.0.0.1:")
    assert ask(address, "GET", "/readyz").status == 200
    assert "end it with: holdfast down" in up.err
    log = cli.home / "logs" / "daemon.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    again = cli("up", "--detach", "--json", code=5)
    assert again.error["code"] == "already_exists"
    # Other commands work beside it, and it hears of what they write.
    cli("state", "set", "k", "v")
    place = ask(f"unix:{socket_path(HomePaths(cli.home))}", "GET", "/v1/log").json
    assert place["head"] == 1
    assert "ended process" in cli("down").err
    assert daemon_note(HomePaths(cli.home)) is None
    assert cli("down", "--json", code=3).error["code"] == "no_daemon"
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"


def test_U4_detached_for_programs_it_answers_with_the_event(cli: Cli) -> None:
    ready = cli("up", "--detach", "--json").json
    assert ready["event"] == "ready"
    assert ready["listening"] == [f"unix:{socket_path(HomePaths(cli.home))}"]
    ended = cli("down", "--json").json
    assert ended["pid"] == ready["pid"]


def test_S16_a_home_that_was_left_badly_is_checked_and_told(cli: Cli) -> None:
    ready = cli("up", "--detach", "--json").json
    os.kill(ready["pid"], signal.SIGKILL)
    with cli.start("up", "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert json.loads(running.stdout.readline())["event"] == "ready"
        said = json.loads(running.stderr.readline())
        assert said["level"] == "warning"
        assert "was not closed cleanly" in said["message"]
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0


# --- status --------------------------------------------------------------------------------------


def test_U2_status_says_who_serves_the_home_and_how_its_links_stand(
    cli: Cli, tmp_path: Path
) -> None:
    alone = cli("status", "--json").json
    assert (alone["daemon"], alone["links"]) == (None, [])
    assert "daemon     none\n" in cli("status").out
    other = make_home(tmp_path / "bob", "bob", "team")
    cli("peer", "trust", Cli(other)("peer", "card").out.strip())
    cli("link", "add", "https://127.0.0.1:9", "--peer", "bob", "--paused")
    said = cli("status")
    assert "daemon     none, so nothing is pulled\n" in said.out
    assert "link       bob is paused, lag unknown\n" in said.out
    assert cli("status", "--json").json["next"] == "holdfast up"
    with running(cli.home, Settings(tcp="127.0.0.1:0")) as up:
        found = cli("status", "--json").json
        assert found["daemon"] == {"pid": os.getpid(), "listening": up.addresses}
        assert [(link["name"], link["state"]) for link in found["links"]] == [("bob", "paused")]
        assert found["next"] != "holdfast up"
        text = cli("status").out
        assert f"daemon     process {os.getpid()}: {', '.join(up.addresses)}\n" in text
        cli("link", "resume", "bob")
        api = up.daemon.api
        assert api.link_manager is not None
        until(lambda: api.link_manager is not None and api.link_manager.status()[0].attempts > 0)
        assert "link       bob is waiting, lag unknown (unreachable: " in cli("status").out


def test_U4_a_daemon_whose_output_nobody_reads_goes_on(cli: Cli) -> None:
    with cli.start("up", "--json") as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert json.loads(started.stdout.readline())["event"] == "ready"
        started.stdout.close()
        started.stderr.close()
        other = make_home(cli.home.parent / "bob", "bob", "team")
        cli("peer", "trust", Cli(other)("peer", "card").out.strip())
        cli("link", "add", "https://127.0.0.1:9", "--peer", "bob")
        unix = f"unix:{socket_path(HomePaths(cli.home))}"
        until(lambda: ask(unix, "GET", "/v1/links/bob").json["attempts"] > 1)
        assert cli("down", "--json").json["pid"] == started.pid


def test_U2_down_is_content_with_a_daemon_that_ended_meanwhile(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = HomePaths(cli.home)
    instance_lock.DaemonLock(paths).close()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    note = instance_lock.DaemonNote(gone.pid)
    monkeypatch.setattr(instance_lock, "daemon_note", lambda paths: note)
    assert cli("down", "--json").json["pid"] == gone.pid


def test_U2_U7_check_daemon_says_whether_a_node_or_a_broker_is_ready(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = cli("check", "daemon", code=2)
    assert none.out == f"critical: no daemon serves {cli.home}\n"
    with running(cli.home) as up:
        assert cli("check", "daemon").out == f"ok: {cli.home} is served\n"
        with monkeypatch.context() as patched:
            patched.setattr(up.daemon.api, "phase", "stopping")
            said = cli("check", "daemon", code=2).out
            assert said.startswith("critical: ")
            assert said.endswith("this node is stopping\n")
    assert cli("check", "daemon", "--json", code=2).json["status"] == "critical"
    store = f"--store={tmp_path / 'hub'}"
    with broker_at(tmp_path / "hub"):
        assert cli("check", "daemon", store).out == f"ok: {tmp_path / 'hub'} is served\n"
    assert cli("check", "daemon", store, code=2).out.startswith("critical: ")
