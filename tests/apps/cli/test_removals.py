"""What removes something says so first: `--dry-run` changes nothing, a terminal is asked."""

from __future__ import annotations

import hashlib

import pytest

import holdfast
from holdfast.apps.cli.declare import ASKS, SessionCommand
from holdfast.node.core.intake import Intake
from holdfast.node.upkeep.foresee import foresee
from holdfast.node.upkeep.sweep import Ttl, sweep
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.storage.ports import Transaction
from support import envelopes as e
from support.cli import Cli
from support.nodes import share
from support.stores import conflict_row, known_member, link_row, quarantine_row, zone_row

ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def full(cli: Cli) -> Cli:
    """A home with something of each kind that a command removes."""
    with holdfast.open(cli.home, sync="normal") as node:
        share(node)
        team = node.mesh("team")
        team.state.set("k", "v", id=ID)
        team.memory.set("m", 1)
        team.files.share("f.txt", b"x")
        team.telemetry.set("kind", "key", 1)
        team.vectors.store("v", [1.0, 0.0], model=holdfast.Model(provider="test", name="m", dim=2))
        node.log.add_consumer("lake")

        def fill(tx: Transaction) -> None:
            tx.zone_put(zone_row("bob"))
            tx.link_put(link_row("bobs", zone="bob"))
            tx.quarantine_add(quarantine_row("bobs"))
            tx.conflict_add(conflict_row())
            tx.known_members_put("team", [known_member("c", name="carol")])

        node._engine.store.write(fill)
    cli("token", "add", "metrics")
    return cli


def contents(cli: Cli) -> str:
    """All that a dump of the home says, but for what every opening of it notes."""
    import apsw

    database = apsw.Connection(str(cli.home / "data.db"), flags=apsw.SQLITE_OPEN_READONLY)
    tables = [
        row[0]
        for row in database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 "
            "AND name NOT IN ('meta', 'job') ORDER BY name"
        )
    ]
    digest = hashlib.sha256()
    for table in tables:
        for row in database.execute(f'SELECT * FROM "{table}"'):
            digest.update(repr(row).encode())
    database.close()
    return digest.hexdigest()


LOCAL = [
    "state delete k",
    "memory forget m",
    "file delete f.txt",
    "telemetry delete kind key",
    "vector delete v --model test:m",
    "conflict dismiss 1",
    "peer revoke bob --reads team",
    "link resume bobs",
    "consumer retire lake",
    "outbox drop 1",
    "link remove bobs",
    "link drop bobs 1",
    "link drop bobs --all",
    "token revoke metrics",
    "mesh leave --forget",
    "mesh remove-member carol",
    "mesh queue jobs --drop",
    "sweep",
    "sweep --log-days 0 --tombstone-days 0",
]


@pytest.mark.parametrize("words", LOCAL)
def test_U2_a_dry_run_says_what_would_go_and_changes_nothing(full: Cli, words: str) -> None:
    before = contents(full)
    said = full(*words.split(), "--dry-run")
    assert "nothing was changed" in said.err
    assert full(*words.split(), "--dry-run", "--json").json["dry_run"] is True
    assert contents(full) == before


@pytest.mark.parametrize(
    "words",
    [
        "state delete nothing",
        "memory forget no",
        "file delete no.txt",
        "telemetry delete kind no",
        "vector delete no --model test:m",
        "conflict dismiss 9",
        "peer revoke bob --key no",
        "link resume none",
        "link resume none --skip-missing",
        "context remove none",
        "consumer retire none",
        "outbox drop 99",
        "link remove none",
        "token revoke none",
    ],
)
def test_U2_a_dry_run_of_what_is_not_there_is_the_same_error(full: Cli, words: str) -> None:
    said = full(*words.split(), "--dry-run", "--json", code=None)
    assert (said.code, said.error["code"]) == (
        (again := full(*words.split(), "--json", code=None)).code,
        again.error["code"],
    )
    assert said.code == 4


@pytest.mark.parametrize(
    "words", ["consumer retire lake", "link remove bobs", "link drop bobs 1", "outbox drop 1"]
)
def test_U2_a_person_at_a_terminal_is_asked_and_may_say_no(full: Cli, words: str) -> None:
    before = contents(full)
    for typed in ("n\n", "\n", "what\nn\n"):
        asked = full.on_a_terminal(*words.split(), typed=typed, code=1)
        assert "? [y/N]: " in asked.out
        assert asked.out.rstrip().endswith("nothing was done")
    assert contents(full) == before
    full.on_a_terminal(*words.split(), "--yes")
    assert contents(full) != before


def test_U2_yes_at_a_terminal_does_it_and_no_answer_does_not(full: Cli) -> None:
    before = contents(full)
    full.on_a_terminal("consumer", "retire", "lake", typed="\x04", code=130)
    assert contents(full) == before
    done = full.on_a_terminal("consumer", "retire", "lake", typed="y\n")
    assert "Forget how far the reader lake is (4 entries wait for it)? [y/N]: " in done.out
    assert full("consumer", "list", "--json").json == []


def test_U2_a_script_is_not_asked(full: Cli) -> None:
    assert full("link", "drop", "bobs", "1", "--json").json["dropped"] == 1
    assert full.on_a_terminal("consumer", "retire", "lake", "--json").out == (
        '{"name":"lake","retired":true}\n'
    )


def test_S17_a_foreseen_sweep_is_what_a_sweep_then_does(cli: Cli) -> None:
    ttl = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0, outbox_ms=0)
    with holdfast.open(cli.home, sync="normal") as node:
        team = node.mesh("team")
        for at in range(20):
            team.state.set(f"k{at}", at)
        for at in range(7):
            team.state.delete(f"k{at}")
        team.files.share("large", b"x" * 200_000)
        team.files.delete("large")
        raws = [e.message_send("topic", "t", b"x", lamport=99, id=e.make_id(1))]
        share(node)
        node._engine.store.write(
            Intake(node._engine.ctx, raws, delivered=dict.fromkeys(raws, b"B" * 16))
        )
        node.log.add_consumer("behind", "start")
        held, _ = foresee(node._engine, ttl)
        assert (held.log_entries, held.tombstones) == (0, 0), "a reader holds everything"
        node.log.retire("behind")
        foreseen, at_least = foresee(node._engine, ttl)
        assert at_least == ()
        assert foreseen.log_entries
        assert foreseen.tombstones == 8
        assert foreseen.blobs == 1
        done = sweep(node._engine, ttl)
    # The ids of what goes from the log are remembered by the sweep itself, and then old at once.
    same = ("consumers", "log_entries", "tombstones", "inbox_rows", "blobs", "outbox_rows")
    assert [getattr(done, name) for name in same] == [getattr(foreseen, name) for name in same]


def test_S17_what_fills_a_chunk_is_said_to_be_that_or_more(cli: Cli) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        team = node.mesh("team")
        for at in range(CHUNK_ROWS + 1):
            team.facts.append("s", "p", at)
        _, at_least = foresee(node._engine, Ttl(log_ms=0))
    assert at_least == ("log_entries",)
    said = cli("sweep", "--log-days", "0", "--dry-run")
    assert f"log entries           {CHUNK_ROWS} or more\n" in said.out


REMOVING = (
    *("delete", "dismiss", "drop", "forget", "forget-auth", "remove", "remove-member"),
    *("retire", "revoke", "sweep", "vacuum"),
)


def test_U2_whatever_is_called_as_if_it_removed_something_can_be_tried() -> None:
    """`quorum remove` takes away a vote, which `quorum add` gives again."""
    from apps.cli.test_usage import COMMANDS

    removing = [path for path in COMMANDS if path.split()[-1] in REMOVING]
    assert len(removing) >= 20
    without = [
        path
        for path in removing
        if "--dry-run" not in {name for param in COMMANDS[path].params for name in param.opts}
    ]
    assert without == ["quorum remove"]


def test_U2_every_command_that_asks_can_be_tried_and_told_yes() -> None:
    from apps.cli.test_usage import COMMANDS

    asking = {
        path: {name for param in command.params for name in param.opts}
        for path, command in COMMANDS.items()
        if isinstance(command, SessionCommand) and command.removes
    }
    assert len(asking) >= 15
    for path, options in asking.items():
        assert "--dry-run" in options, path
        command = COMMANDS[path]
        assert isinstance(command, SessionCommand)
        assert ("--yes" in options) is (command.removes == ASKS), path
