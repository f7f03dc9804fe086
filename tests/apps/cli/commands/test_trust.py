"""`holdfast peer` and `holdfast token`: cards, trust, keys that change, tokens."""

from __future__ import annotations

import stat

import pytest

import holdfast
from holdfast.node.library.node import open_node
from holdfast.node.trust.trust import Trust
from holdfast.rules.keys import card_of, public_key, text_of
from holdfast.storage.files.home import HomePaths
from support.cli import Cli
from support.daemon import running
from support.envelopes import state_set

BO = card_of("bo", public_key(b"b" * 32))
BO_KEY = text_of(public_key(b"b" * 32))
BO_NEXT = card_of("bo", public_key(b"n" * 32))


def secrets_of(cli: Cli) -> list[str]:
    paths = HomePaths(cli.home)
    seeds = [file.read_bytes() for file in (paths.identity, paths.identity_next) if file.exists()]
    return [form for seed in seeds for form in (seed.hex(), text_of(seed))]


def test_Z8_a_card_is_one_line(cli: Cli) -> None:
    said = cli("peer", "card")
    assert said.out == card_of("ana", public_key(HomePaths(cli.home).identity.read_bytes())) + "\n"
    assert cli("peer", "card", "--json").json == {"zone": "ana", "card": said.out.strip()}


def test_Z8_a_zone_is_trusted_listed_and_blocked(cli: Cli) -> None:
    assert "holdfast peer trust CARD" in cli("peer", "zones").err
    assert cli("peer", "zones", "--json").json == []
    done = cli("peer", "trust", BO, "--reads", "team", "--days", "2")
    assert (done.out, done.err) == ("bo\n", "bo is trusted; it may read team\n")
    listed = cli("peer", "zones").out.splitlines()
    assert listed[0].split() == [
        *("ZONE", "TRUST", "KEYS", "READS", "ADDRESSES", "ADDED", "BLOCKED")
    ]
    assert listed[1].split()[:4] == ["bo", "trusted", BO_KEY, "team"]
    found = cli("peer", "zones", "--json").json[0]
    assert (found["zone"], found["trust"], found["keys"]) == ("bo", "trusted", [BO_KEY])
    assert found["all_keys"][0]["expires_at"] > found["added_at"]
    assert cli("peer", "block", "bo", "--json").json["trust"] == "blocked"
    assert cli("peer", "trust", BO, "--json").json["trust"] == "trusted"


def test_Z8_grants_and_keys_are_taken_back(cli: Cli) -> None:
    cli("peer", "trust", BO, "--reads", "team", "--reads", "*")
    both = cli("peer", "trust", BO_NEXT, "--json").json
    assert (len(both["keys"]), both["reads"]) == (2, ["*", "team"])
    assert cli("peer", "revoke", "bo", "--reads", "*", "--json").json["reads"] == ["team"]
    assert "by 1 key" in cli("peer", "revoke", "bo", "--key", BO).err
    assert cli("peer", "revoke", "bo", "--key", BO_NEXT, "--json").json["trust"] == "no key"
    nothing = cli("peer", "revoke", "bo", "--json", code=2).error
    assert "holdfast peer block bo" in nothing["hint"]
    assert cli("peer", "revoke", "cy", "--reads", "team", code=4).out == ""


def test_Z8_a_mesh_that_is_not_there_is_granted_with_a_warning(cli: Cli) -> None:
    said = cli("peer", "trust", BO, "--reads", "tema")
    assert "warning: there is no mesh 'tema' here yet" in said.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("peer", "trust", "garbage"), 2),
        (("peer", "trust", BO, "--days", "0"), 2),
        (("peer", "trust", BO, "--reads", "No Mesh"), 2),
        (("peer", "block", "eve"), 4),
        (("token", "add", "a/b"), 2),
        (("token", "revoke", "none"), 4),
        (("peer", "rotate", "--switch"), 4),
    ],
)
def test_Z8_what_makes_no_sense_is_refused_with_a_hint(
    cli: Cli, words: tuple[str, ...], code: int
) -> None:
    assert cli(*words, "--json", code=code).error["hint"]


def test_Z8_a_node_does_not_trust_its_own_card(cli: Cli) -> None:
    card = cli("peer", "card").out.strip()
    assert cli("peer", "trust", card, "--json", code=2).error["code"] == "bad_input"


def test_Z8_a_key_is_changed_in_two_commands(cli: Cli) -> None:
    before = cli("peer", "card").out
    made = cli("peer", "rotate")
    assert "holdfast peer trust CARD" in made.err
    assert cli("peer", "rotate").out == made.out != before
    assert cli("peer", "card").out == before
    assert stat.S_IMODE(HomePaths(cli.home).identity_next.stat().st_mode) == 0o600
    switched = cli("peer", "rotate", "--switch")
    assert switched.out == made.out == cli("peer", "card").out
    assert f"holdfast peer revoke ana --key {before.strip().rpartition(':')[2]}" in switched.err
    assert not HomePaths(cli.home).identity_next.exists()
    assert "[OK]   identity" in cli("doctor").out


def test_Z8_a_backup_of_a_node_with_a_next_key_is_restored(cli: Cli) -> None:
    cli("peer", "rotate")
    cli("backup", str(cli.home.parent / "kept"))
    other = Cli(cli.home.parent / "other")
    other("restore", str(cli.home.parent / "kept"))
    assert other("peer", "card").out == cli("peer", "card").out
    cli("restore", str(cli.home.parent / "kept"), "--force")


def test_D10_a_token_is_shown_once(cli: Cli) -> None:
    assert "holdfast token add NAME" in cli("token", "list").err
    made = cli("token", "add", "op")
    secret = made.out.strip()
    assert secret.startswith("hf_")
    assert secret not in made.err
    assert "not shown again" in made.err
    reading = cli("token", "add", "spark", "--reads", "team", "--days", "9", "--json").json
    assert (reading["scope"], reading["reads"]) == ("read", ["team"])
    assert reading["secret"].startswith("hf_")
    listed = cli("token", "list")
    assert listed.out.splitlines()[0].split() == [
        *("TOKEN", "SCOPE", "READS", "CREATED", "EXPIRES", "EXPIRED")
    ]
    found = cli("token", "list", "--json")
    assert [(row["token"], row["scope"]) for row in found.json] == [
        ("op", "all"),
        ("spark", "read"),
    ]
    for hidden in (secret[3:], reading["secret"][3:]):
        assert hidden not in listed.out + found.out


def test_D10_tokens_are_replaced_without_a_pause(cli: Cli) -> None:
    old = cli("token", "add", "op-1").out.strip()
    new = cli("token", "add", "op-2").out.strip()
    assert cli("token", "add", "op-2", "--json", code=5).error["code"] == "already_exists"
    cli("token", "revoke", "op-1")
    with open_node(cli.home) as node:
        trust = Trust(node._engine, HomePaths(cli.home))
        assert trust.caller_of_token(new, local=True).name == "op-2"
        assert [row.name for row in trust.tokens()] == ["op-2"]
    assert old != new


def test_Z8_no_command_shows_a_secret_key(cli: Cli) -> None:
    said = ""
    for words in (
        *(("peer", "card"), ("peer", "rotate"), ("peer", "trust", BO), ("peer", "zones")),
        *(("peer", "rotate", "--switch"), ("peer", "rotate"), ("status",), ("doctor",), ("paths",)),
    ):
        for form in (words, (*words, "--json")):
            done = cli(*form, code=None)
            said += done.out + done.err
    for hidden in secrets_of(cli):
        assert hidden not in said


def test_Z8_a_daemon_that_runs_notices_every_change_of_trust_at_once(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(cli.home) as up:
        link_manager = up.daemon.api.link_manager
        assert link_manager is not None
        looked: list[None] = []
        monkeypatch.setattr(link_manager, "refresh", lambda: looked.append(None))
        for number, words in enumerate(
            [
                ("peer", "trust", BO, "--reads", "team"),
                ("peer", "revoke", "bo", "--reads", "team"),
                ("peer", "block", "bo"),
                ("token", "add", "spark"),
                ("token", "revoke", "spark"),
            ],
            1,
        ):
            cli(*words)
            assert len(looked) == number, words
        cli("peer", "rotate")
        assert len(looked) == 5, "nothing has changed for the daemon yet"
        cli("peer", "rotate", "--switch")
        assert len(looked) == 6
        up.daemon.api.phase = "stopping"
        cli("peer", "trust", BO)
        assert len(looked) == 6, "and a daemon that ends is no reason to fail"


def test_Z8_to_take_one_mesh_from_a_zone_that_reads_all_is_not_said_to_be_done(cli: Cli) -> None:
    cli("peer", "trust", BO, "--reads", "*")
    refused = cli("peer", "revoke", "bo", "--reads", "team", "--json", code=2).error
    assert "may read every mesh, team among them" in refused["message"]
    assert "--reads" in refused["hint"]


def test_S21_a_peer_of_a_mesh_is_blocked_and_heard_again(cli: Cli) -> None:
    with holdfast.open(cli.home) as node:
        node.apply([state_set("k", 1, origin="bob", lamport=5)])
    assert cli("peer", "blocked").err == "no peer is blocked\n"
    done = cli("peer", "block", "bob")
    assert done.out == "bob\n"
    assert done.err == "bob is blocked; to hear it again: holdfast peer unblock bob\n"
    (row,) = cli("peer", "blocked", "--json").json
    assert (row["peer"], row["dropped"]) == ("bob", 0)
    assert cli("peer", "unblock", "bob").out == "bob\n"
    assert cli("peer", "unblock", "bob", "--json", code=4).error["code"] == "unknown_peer"
    assert cli("peer", "block", "bobb", "--json", code=4).error["code"] == "unknown_zone"
