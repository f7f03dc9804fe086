"""What is wrong with what was asked: usage, bad input, and the help that gets people out of it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from holdfast.apps.cli.app import root
from holdfast.apps.cli.commands.help import EXIT_CODES
from holdfast.rules import errors
from holdfast.rules.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from support.cli import Cli
from support.project import ROOT


def _commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, path: str) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, f"{path} {name}".strip())
        else:
            found[path] = command

    walk(root, "")
    return found


COMMANDS = _commands()
NAMED = """
    init status doctor paths batch check.lag check.disk check.integrity check.backup check.daemon
    up down mesh.create mesh.list mesh.info mesh.clock
    mesh.publish mesh.join mesh.sync mesh.leave mesh.move mesh.pause mesh.resume
    mesh.invite mesh.invites mesh.members mesh.grant mesh.remove-member
    mesh.delete mesh.topic mesh.queue mesh.destinations mesh.subscribe mesh.unsubscribe
    send inbox.list inbox.read inbox.reply check.outbox
    outbox.list outbox.lanes outbox.show outbox.retry outbox.requeue outbox.drop
    queue.list queue.take queue.settle queue.run queue.letters
    broker.serve broker.down broker.status broker.sweep broker.orphans broker.doctor
    broker.new-epoch broker.console
    peer.list peer.zones peer.card peer.trust peer.revoke peer.block peer.rotate peer.ping
    peer.presence peer.describe peer.blocked peer.unblock
    bus.send bus.publish bus.request bus.listen bus.serve bus.status bus.seal bus.unseal
    mesh.share mesh.admit
    capability.give capability.narrow capability.show capability.use capability.list capability.drop
    token.add token.list token.revoke
    link.add link.list link.show link.pause link.resume link.remove
    link.pull link.quarantine link.retry link.drop link.objects
    state.watch memory.watch task.watch file.watch inbox.watch vector.watch fact.watch audit.watch
    memory.set memory.get memory.forget memory.list
    state.history memory.history state.edit memory.edit state.set state.get state.delete state.list
    vector.store vector.search vector.models vector.delete vector.reembed
    file.share file.list file.read file.delete
    bugreport bench ping context.add context.list context.use context.show context.remove
    task.create task.list task.show task.claim task.release task.complete task.cancel task.events
    conflict.list conflict.show conflict.restore conflict.dismiss log.tail log.range
    object.put object.get object.list
    fact.append fact.fetch fact.confirm consumer.add consumer.list consumer.retire
    mesh.restamp reload sweep backup restore export import console demo mcp.install completion help
    pipeline.run pipeline.stream pipeline.status pipeline.forget pipeline.verify pipeline.audit
    pipeline.state pipeline.query pipeline.snapshot pipeline.reembed
    pipeline.compact pipeline.vacuum pipeline.backfill pipeline.repair pipeline.serve
    pipeline.changes pipeline.register
    quorum.init quorum.status quorum.members quorum.add quorum.remove quorum.transfer
    quorum.step-down quorum.pause quorum.resume quorum.recover quorum.replay
    entity.put entity.patch entity.delete entity.get entity.list entity.history
    lease.run lease.list lease.show lease.release
    writes.list writes.show writes.resolve writes.conflicts writes.replay
    audit.append audit.list audit.streams audit.verify quorum.forget-auth quorum.move
    quorum.forget-claim
    service.install service.status service.uninstall
    telemetry.delete telemetry.get telemetry.list telemetry.set
"""


def test_U2_every_command_that_was_promised_is_there() -> None:
    assert set(COMMANDS) == {name.replace(".", " ") for name in NAMED.split()}


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_U2_every_command_takes_home_and_json_and_explains_itself(cli: Cli, path: str) -> None:
    options = {name for param in COMMANDS[path].params for name in param.opts}
    assert {"--home", "--json"} <= options
    shown = cli(*path.split(), "--help")
    assert shown.out.startswith(f"Usage: holdfast {path} ")
    assert cli("help", *path.split()).out == shown.out
    undescribed = [
        param.name
        for param in COMMANDS[path].params
        if isinstance(param, click.Option)
        and not (param.help or param.metavar or param.show_default)
    ]
    assert undescribed == []


# --- usage --------------------------------------------------------------------------------------


def test_U2_an_unknown_command_gets_a_suggestion(cli: Cli) -> None:
    wrong = cli("stat", code=2)
    hint = "hint: did you mean: holdfast state; or see: holdfast --help"
    assert (wrong.out, wrong.err.splitlines()[-1]) == ("", hint)
    assert "'status'" in wrong.err
    assert "'state'" in wrong.err
    assert "'get'" in cli("state", "gett", code=2).err
    assert "--prefix" in cli("state", "list", "--prefx", "x", code=2).err


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("state", "frobnicate"),
        ("state", "get"),
        ("state", "get", "a", "b"),
        ("state", "list", "--nothing"),
        ("conflict", "show", "one"),
        ("completion", "tcsh"),
        ("log", "tail", "-n", "-1"),
        ("init",),
        ("--nothing",),
    ],
)
def test_U2_wrong_usage_exits_with_2_in_both_forms(cli: Cli, words: tuple[str, ...]) -> None:
    plain = cli(*words, code=2)
    assert plain.out == ""
    assert plain.err.startswith("error: ")
    assert "see: holdfast" in plain.err.splitlines()[-1]
    assert cli(*words, "--json", code=2).error["code"] == "usage"


def test_U2_a_noun_alone_shows_its_verbs(cli: Cli) -> None:
    shown = cli("state", code=2)
    assert shown.out == ""
    assert "Usage: holdfast state" in shown.err
    assert "delete" in shown.err


def test_U2_json_after_two_dashes_is_a_word_like_any_other(cli: Cli) -> None:
    assert cli("state", "get", "--", "--json", code=4).err.startswith("error: state of 'team'")


def test_U2_a_value_that_begins_with_a_dash_needs_two_before_it(cli: Cli) -> None:
    wrong = cli("state", "set", "temperature", "-5", code=2)
    assert "write -- before" in wrong.err
    cli("state", "set", "temperature", "--", "-5")
    assert cli("state", "get", "temperature").out == "-5\n"


# --- help ---------------------------------------------------------------------------------------


def test_U2_exit_codes_are_explained(cli: Cli) -> None:
    shown = cli("help", "exit-codes")
    assert shown.out.splitlines()[0] == "EXIT CODE  NAME         MEANING"
    assert "1 warning" in shown.err
    listed = {entry["exit_code"]: entry for entry in cli("help", "exit-codes", "--json").json}
    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
    }
    assert raised <= set(listed) == set(EXIT_CODES)


def test_U2_the_changelog_comes_with_the_program(cli: Cli) -> None:
    shown = cli("help", "changelog")
    assert shown.out == (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert cli("help", "changelog", "--json").json["changelog"] == shown.out
    assert "changelog" in cli("help").err


def test_U2_help_shows_any_command(cli: Cli) -> None:
    assert "exit-codes" in cli("help").err
    assert cli("help", "state", "set").out.startswith(
        "Usage: holdfast state set [OPTIONS] KEY VALUE"
    )
    assert cli("help", "state", "--json").json["command"] == "holdfast state"
    assert cli("help", "nothing", code=2).err.startswith("error: there is no command 'nothing'")
    assert cli("help", "state", "get", "more", code=2).out == ""
    assert cli("--help").out.startswith("Usage: holdfast [OPTIONS] [COMMAND]")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_U2_completion_scripts_are_printed_and_work(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).out
    assert "_HOLDFAST_COMPLETE" in script
    assert cli("completion", shell, "--json").json["script"].strip() == script.strip()
    asked = {"bash": "holdfast sta", "zsh": "sta", "fish": "sta\nend"}[shell]
    typed = {"COMP_LINE" if shell == "bash" else "COMP_WORDS": asked}
    done = cli.process(env={"_HOLDFAST_COMPLETE": f"{shell}_complete", **typed})
    assert (done.code, done.out, done.err) == (0, "=status\n=state\n", "")


# --- bad input ----------------------------------------------------------------------------------

MIB = "x" * (VALUE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("words", "stdin", "code"),
    [
        (("state", "set", "", "v"), "", "bad_key"),
        (("state", "set", "a\0b", "v"), "", "bad_key"),
        (("state", "set", "\udcff", "v"), "", "bad_key"),
        (("state", "set", "k" * (KEY_BYTES_MAX + 1), "v"), "", "over_limit"),
        (("state", "set", "k", "-"), MIB, "over_limit"),
        (("state", "set", "k", "-"), "a\0b", "bad_value"),
        (("state", "set", "k", "\udcff"), "", "bad_value"),
        (("state", "set", "k", "-", "--json-value"), "NaN", "bad_value"),
        (("state", "set", "k", "-", "--json-value"), "{", "bad_value"),
        (("state", "set", "k", "-", "--json-value"), "", "bad_value"),
        (("state", "set", "k", "-", "--json-value"), "[" * 100_000, "bad_value"),
        (("state", "set", "k", "-", "--json-value"), "[" * 70 + "]" * 70, "over_limit"),
        (("state", "set", "k", "-"), MIB * 17, "over_limit"),
        (("state", "set", "k", "v", "--id", "7"), "", "bad_id"),
        (("state", "set", "k", "v", "--id", "c56a4180-65aa-42ec-a945-5fd21dec0538"), "", "bad_id"),
        (("state", "delete", ""), "", "bad_key"),
        (("state", "get", "k" * 2000, "--json"), "", "over_limit"),
        (("memory", "set", "k", "v", "--tag", ""), "", "bad_key"),
        (("memory", "set", "k", "v", *("--tag=x",) * 65), "", "over_limit"),
        (("memory", "list", "--scope", "peer:"), "", "bad_peer_id"),
        (("memory", "list", "--scope", "peer:e\u0301"), "", "bad_peer_id"),
        (("vector", "store", "k", "[1]", "--model", "nonsense"), "", "bad_vector"),
        (("vector", "store", "k", "[1]", "--model", "a:"), "", "bad_vector"),
        (("vector", "store", "k", "[1]", "--model", "a:b", "--metadata", "{"), "", "bad_value"),
        (("vector", "store", "k", "[1]", "--model", "a:b", "--content", "a\0b"), "", "bad_key"),
        (("vector", "store", "k", "--model", "a:b"), "", "bad_input"),
        (("vector", "search", "[1]", "--model", "a:b", "--limit", "0"), "", "over_limit"),
        (("task", "create", ""), "", "bad_value"),
        (("task", "create", "t" * 2000), "", "over_limit"),
        (("task", "create", "t", "--description", "x" * 70_000), "", "over_limit"),
        (("fact", "append", "", "p", "o"), "", "bad_key"),
        (("fact", "append", "s", "p" * 300, "o"), "", "over_limit"),
        (("consumer", "add", "c" * 513), "", "over_limit"),
        (("mesh", "create", "UPPER"), "", "bad_input"),
        (("mesh", "create", "x" * 65), "", "over_limit"),
        (("state", "list", "--mesh", "../up"), "", "bad_input"),
        (("import", "no-such-file"), "", "bad_input"),
        (("import", "-"), "this is no export", "bad_value"),
    ],
)
def test_U2_bad_input_is_refused_with_a_reason(
    cli: Cli, words: tuple[str, ...], stdin: str, code: str
) -> None:
    refused = cli(*words, "--json", stdin=stdin, code=2)
    assert refused.error["code"] == code
    assert refused.error["message"]
    assert cli("log", "range", "--json").json == []


def test_U2_stdin_that_is_not_text_is_refused(cli: Cli) -> None:
    refused = cli("state", "set", "k", "-", "--json", stdin=b"\xff\xfe", code=2)
    assert refused.error["code"] == "bad_value"
    assert "file share" in refused.error["hint"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("state", "get", "none"), "unknown_key"),
        (("state", "list", "--mesh", "none"), "unknown_mesh"),
        (("task", "show", "none"), "unknown_task"),
        (("file", "read", "none"), "unknown_file"),
        (("file", "read", "none", "--peer", "bo"), "unknown_file"),
        (("fact", "fetch", "none"), "unknown_consumer"),
        (("conflict", "show", "7"), "unknown_conflict"),
        (("vector", "delete", "k", "--model", "a:b"), "unknown_model"),
        (("export", "--mesh", "none"), "unknown_mesh"),
    ],
)
def test_U2_what_is_not_there_exits_with_4(cli: Cli, words: tuple[str, ...], code: str) -> None:
    assert cli(*words, "--json", code=4).error["code"] == code
    plain = cli(*words, code=4)
    assert plain.out == ""
    assert plain.err.startswith("error: ")


def test_U2_a_refusal_is_one_json_line_with_code_message_and_hint(cli: Cli) -> None:
    said = cli("state", "get", "żaba", "--json", code=4)
    assert said.err.count("\n") == 1
    assert json.loads(said.err) == {
        "error": {
            "code": "unknown_key",
            "message": "state of 'team' has no key 'żaba'",
            "hint": "see: holdfast state list --mesh team",
        }
    }


def test_S1_a_home_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home\udcff")
    for words in (("init", "--peer", "ana"), ("state", "get", "k"), ("status",), ("paths",)):
        assert cli(*words, "--json", code=2).error["code"] == "bad_path"
    assert not cli.home.exists()
