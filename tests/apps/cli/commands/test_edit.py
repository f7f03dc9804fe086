"""A value in an editor: written back, merged with what came meanwhile, or kept in a file."""

from __future__ import annotations

import re
import shlex
import stat
import sys
from pathlib import Path

import pytest

import holdfast
from support.cli import Cli, Outcome


def editor(code: str) -> dict[str, str]:
    """An editor that runs this code on `path`."""
    program = f"import sys, json, os; path = sys.argv[1]; {code}"
    return {"EDITOR": shlex.join([sys.executable, "-c", program]), "VISUAL": ""}


def replaces(text: str) -> dict[str, str]:
    return editor(f"open(path, 'w').write({text!r})")


def meanwhile(cli: Cli, value: object, typed: str) -> dict[str, str]:
    """An editor during whose work another process writes `plan`."""
    return editor(
        f"import holdfast; node = holdfast.open({str(cli.home)!r}); "
        f"node.mesh('team').state.set('plan', {value!r}); node.close(); "
        f"open(path, 'w').write({typed!r})"
    )


def kept(outcome: Outcome) -> Path:
    """The file that is named in the hint."""
    found = re.search(r"what you wrote is in (\S+)", outcome.err)
    assert found is not None, outcome.err
    return Path(found[1])


def test_U2_a_value_is_changed_in_the_editor(cli: Cli) -> None:
    cli("state", "set", "plan", '{"a":1}', "--json-value")
    cli("state", "edit", "plan", env=replaces('{"a": 2,\n "b": 3}'))
    assert cli("state", "get", "plan").out == '{"a":2,"b":3}\n'
    cli("state", "set", "text", "one")
    cli("state", "edit", "text", env=replaces("two\nlines\n"))
    assert cli("state", "get", "text", "--json").json["value"] == "two\nlines"
    cli("memory", "set", "note", "1", "--tag", "x")
    cli("memory", "edit", "note", env=replaces("2\n"))
    assert cli("memory", "get", "note", "--json").json["tags"] == ["x"]


def test_U2_what_was_not_changed_is_not_written(cli: Cli) -> None:
    cli("state", "set", "plan", '{"a":1}', "--json-value")
    done = cli("state", "edit", "plan", env=editor("os.utime(path)"))
    assert (done.out, done.err) == ("", "nothing was changed\n")
    assert cli("state", "get", "plan", "--json").json["lamport"] == 1


def test_S18_what_others_wrote_meanwhile_is_merged_field_by_field(cli: Cli) -> None:
    cli("state", "set", "plan", '{"a":1,"b":1}', "--json-value")
    done = cli("state", "edit", "plan", env=meanwhile(cli, {"a": 9, "b": 1}, '{"a":1,"b":2}'))
    assert "merged with what ana wrote meanwhile" in done.err
    assert cli("state", "get", "plan").out == '{"a":9,"b":2}\n'


def test_S18_a_change_in_the_same_place_is_refused_and_kept(cli: Cli) -> None:
    cli("state", "set", "plan", '{"a":1}', "--json-value")
    refused = cli("state", "edit", "plan", code=5, env=meanwhile(cli, {"a": 9}, '{"a":2}'))
    assert "in the same place: .a" in refused.err
    file = kept(refused)
    assert file.read_text() == '{"a":2}'
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert cli("state", "get", "plan").out == '{"a":9}\n'
    file.unlink()
    file.parent.rmdir()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (replaces('{"a":1,"a":2}'), "a"),
        (replaces("{"), "JSON"),
        (editor("open(path, 'wb').write(b'\\xff')"), "UTF-8"),
        (editor("sys.exit(3)"), "ended with 3"),
        ({"EDITOR": "/no/such/editor", "VISUAL": ""}, "did not start"),
    ],
)
def test_U2_what_cannot_be_written_is_kept(cli: Cli, env: dict[str, str], said: str) -> None:
    cli("state", "set", "plan", "[1]", "--json-value")
    refused = cli("state", "edit", "plan", code=2, env=env)
    assert said in refused.err
    file = kept(refused)
    assert file.exists()
    assert cli("state", "get", "plan").out == "[1]\n"
    file.unlink()
    file.parent.rmdir()


def test_U2_a_key_that_is_not_there_is_not_edited(cli: Cli) -> None:
    assert "has no key" in cli("state", "edit", "nope", code=4, env=replaces("x")).err
    assert "remembers nothing" in cli("memory", "edit", "nope", code=4, env=replaces("x")).err
    with holdfast.open(cli.home) as node:
        assert list(node.log.range()) == []
