"""`holdfast bus` and what `holdfast peer` says of it, with and without a daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from support.bus_homes import Homes, befriend, trust_of
from support.cli import Cli, Outcome
from support.waiting import until


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    with Homes(tmp_path, "daemon") as made:
        yield made


@pytest.fixture
def bo(homes: Homes, cli: Cli) -> Outcome:
    """Bo has a home without a daemon, and knows ana, whose daemon listens."""
    ana, bo = homes.pair()
    ana.close()
    bo.close()
    return cli("peer", "list", "--home", str(homes.home("bo")))


def of(homes: Homes, name: str) -> tuple[str, str]:
    return "--home", str(homes.home(name))


def test_U2_B4_a_message_goes_from_a_command_to_a_command(
    homes: Homes, bo: Outcome, cli: Cli
) -> None:
    sent = cli("bus", "send", "ana", "hello", "--topic", "news", *of(homes, "bo"))
    assert sent.err == "delivered for ana\n"
    assert len(sent.out.strip()) == 36
    heard = cli("bus", "listen", "--count", "1", "--topic", "news", *of(homes, "ana"))
    assert heard.out == "hello\n"
    assert "from bo on news" in heard.err
    same = ("--id", sent.out.strip(), *of(homes, "bo"))
    cli("bus", "send", "ana", "hello", "--topic", "news", *same)
    other = cli("bus", "send", "ana", "again", "--json", *same, code=5)
    assert other.error["code"] == "idempotency_key_reused"
    again = cli("bus", "send", "ana", "more", "--json", *of(homes, "bo")).json
    assert (again["to"], again["state"]) == ("ana", "delivered")
    heard = cli("bus", "listen", "--count", "1", "--json", *of(homes, "ana"))
    assert heard.json["content"] == "more", "what came again under its id is no news"


def test_U2_B4_a_command_that_fails_leaves_its_message(
    homes: Homes, bo: Outcome, cli: Cli, tmp_path: Path
) -> None:
    cli("bus", "send", "ana", "work", "--topic", "jobs", *of(homes, "bo"))
    listen = ("bus", "listen", "--count", "1", *of(homes, "ana"), "--")
    failed = cli(*listen, "false", code=1)
    assert "false ended with 1; the message comes again" in failed.err
    script = 'printf "%s %s %s" "$HOLDFAST_SENDER" "$HOLDFAST_TOPIC" "$(cat)" > seen'
    cli(*listen, "sh", "-c", f"cd {tmp_path} && {script}")
    assert (tmp_path / "seen").read_text() == "bo jobs work"


def test_U2_B5_a_command_answers_requests_until_it_is_interrupted(
    homes: Homes, bo: Outcome, cli: Cli
) -> None:
    words = ("bus", "serve", "shout", *of(homes, "ana"), "--", "tr", "a-z", "A-Z")
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stderr=subprocess.PIPE, text=True
    ) as served:
        assert served.stderr is not None
        try:
            lines = iter(served.stderr.readline, "")
            assert any(line.startswith("serving shout") for line in lines)
            asked = cli("bus", "request", "ana", "shout", "hello", *of(homes, "bo"))
            assert (asked.out, asked.err) == ("HELLO\n", "ana answered\n")
            reply = cli("bus", "request", "any", "shout", "x", "--json", *of(homes, "bo")).json
            assert (reply["from"], reply["content"]) == ("ana", "X")
        finally:
            served.send_signal(signal.SIGINT)
        assert served.wait(30) == 130
    nobody = cli("bus", "request", "ana", "shout", "--json", *of(homes, "bo"), code=4)
    assert nobody.error["code"] == "no_responder"


def test_U2_B6_peers_and_the_bus_are_shown_with_their_links(
    homes: Homes, bo: Outcome, cli: Cli
) -> None:
    assert bo.out.splitlines()[0].split()[:4] == ["PEER", "TRUST", "LINK", "ADDRESS"]
    pinged = cli("peer", "ping", "ana", "--json", *of(homes, "bo")).json
    assert pinged["ms"] > 0
    node = homes.open("bo")
    node.bus.ping("ana")
    # Ana's side of the link is used a moment later than bo's.
    until(lambda: cli("peer", "list", "--json", *of(homes, "ana")).json[0]["link"] == "up")
    (row,) = cli("peer", "list", "--json", *of(homes, "ana")).json
    assert (row["peer"], row["trust"], row["link"], row["refused"]) == ("bo", "trusted", "up", 0)
    status = cli("bus", "status", "--json", *of(homes, "ana")).json
    assert (status["name"], status["pid"]) == ("ana", os.getpid())
    assert "bo" in cli("bus", "status", *of(homes, "ana")).out
    assert (
        f"bus        {status['listening'][0]}; linked with bo\n"
        in cli("status", *of(homes, "ana")).out
    )
    card = cli("peer", "card", "--bus", *of(homes, "ana")).out.strip()
    assert card.endswith(f"@{status['listening'][0]}")
    node.bus.close()
    cli("peer", "block", "bo", *of(homes, "ana"))
    (row,) = cli("peer", "list", "--json", *of(homes, "ana")).json
    assert (row["trust"], row["link"]) == ("blocked", "down")


def test_U2_B6_two_machines_with_one_home_are_named_by_both_and_by_their_peers(
    homes: Homes, bo: Outcome, cli: Cli
) -> None:
    shutil.copytree(homes.home("bo"), homes.folder / "copy")
    both = homes.open("bo"), homes.stack.enter_context(holdfast.open(homes.folder / "copy"))
    for node in both:
        node.bus.send("ana", "one of two")
    for node in both:
        until(lambda node=node: bool(node.bus.status().warnings))  # type: ignore[misc]
        (own,) = node.bus.status().warnings
        assert own.startswith("peer_copied: ana met another process with the key of this node")
    (named,) = cli("bus", "status", "--json", *of(homes, "ana")).json["warnings"]
    assert named.startswith("peer_copied: two processes show the key of 'bo'")
    assert f"warning: {named}" in cli("bus", "status", *of(homes, "ana")).err
    assert f"           {named}\n" in cli("status", *of(homes, "ana")).out


def test_U2_B6_a_card_may_bring_an_address_and_a_name_an_at_sign(cli: Cli) -> None:
    key = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"
    cli("peer", "trust", f"b@o:ed25519:{key}@10.0.0.7", "--at", "10.0.0.8:9")
    (row,) = cli("peer", "zones", "--json").json
    assert (row["zone"], row["addresses"]) == ("b@o", ["10.0.0.7:7412", "10.0.0.8:9"])
    bad = cli("peer", "trust", f"x:ed25519:{key}@10.0.0.7:0", "--json", code=2)
    assert bad.error["code"] == "bad_input"


def test_U2_B2_a_bus_that_another_process_holds_is_named(homes: Homes, cli: Cli) -> None:
    node = homes.open("ana")
    node.bus.bind(listen="127.0.0.1:0")
    held = cli("bus", "send", "bo", "x", "--json", *of(homes, "ana"), code=5).error
    assert held["message"].startswith(f"process {os.getpid()} holds the bus of ")
    befriend(node, homes.open("bo"))
    assert json.loads(cli("peer", "list", "--json", *of(homes, "ana")).raw)[0]["link"] == "down"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("bus", "send", "ana"), 2),
        (("bus", "send", "ana", "x", "--ttl", "soon"), 2),
        (("bus", "send", "eve", "x"), 4),
        (("bus", "listen", "--topic", "a.>.b"), 2),
        (("bus", "listen", "--listen", "nowhere"), 2),
        (("peer", "ping", "eve"), 4),
        (("peer", "card", "--bus"), 3),
    ],
)
def test_U2_B6_bad_words_are_refused_with_their_exit_code(
    cli: Cli, words: tuple[str, ...], code: int
) -> None:
    assert cli(*words, "--json", code=code).error["message"]


def test_B6_U2_a_peer_that_does_not_trust_this_node_is_told_with_what_to_do(
    homes: Homes, caplog: pytest.LogCaptureFixture
) -> None:
    ana, bo = homes.listening("ana"), homes.open("bo")
    trust_of(bo).trust(trust_of(ana).card(), at=ana.bus.status().listening)
    bo.bus.bind()
    until(lambda: "127.0.0.1 does not trust this node by its key" in caplog.text)
    assert "on that node run: `holdfast peer trust CARD`" in caplog.text
