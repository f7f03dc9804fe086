"""`holdfast object`, and what facts and readers of the log do with it."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.cli.commands import fact
from support.cli import Cli
from support.daemon import running

CONTENT = b"a picture\n" * 20_000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    file.write_bytes(CONTENT)
    return file


def test_U2_an_object_is_put_listed_and_got_by_the_first_digits_of_its_hash(
    cli: Cli, picture: Path, tmp_path: Path
) -> None:
    assert cli("object", "list").err == "no content by hash is known here\n"
    assert cli("object", "put", str(picture)).out == f"{SHA}\n"
    said = cli("object", "put", "-", "--json", stdin=b"other").json
    assert said == {"sha256": hashlib.sha256(b"other").hexdigest(), "size": 5}
    found = {one["sha256"]: one for one in cli("object", "list", "--json").json}
    assert len(found) == 2
    assert (found[SHA]["size"], found[SHA]["here"], found[SHA]["named"]) == (200_000, True, False)
    assert cli("object", "get", SHA[:6]).raw == CONTENT
    cli("object", "get", SHA, "-o", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == CONTENT
    assert cli("object", "get", said["sha256"], "--json").json["content"] == "other"


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["get", "0" * 64], 4, "unknown_object"),
        (["get", "00"], 4, "unknown_object"),
        (["get", "x" * 64], 2, "bad_value"),
        (["put", "no-such-file"], 2, "bad_input"),
    ],
)
def test_U2_an_object_that_is_not_there_is_refused_by_name(
    cli: Cli, words: list[str], code: int, name: str
) -> None:
    assert cli("object", *words, "--json", code=code).error["code"] == name


def test_U2_digits_that_begin_two_objects_list_both(cli: Cli) -> None:
    by_first: dict[str, bytes] = {}
    for number in range(17):  # two of them begin alike
        content = b"%d" % number
        first = hashlib.sha256(content).hexdigest()[0]
        cli("object", "put", "-", stdin=content)
        if first in by_first:
            break
        by_first[first] = content
    error = cli("object", "get", first, "--json", code=2).error
    for content in (by_first[first], b"%d" % number):
        assert hashlib.sha256(content).hexdigest()[:4] in error["hint"]


def test_Z2_a_fact_takes_content_along(cli: Cli, picture: Path) -> None:
    put = cli("object", "put", "-", stdin=b"put before").out.strip()
    done = cli("fact", "append", "a", "b", "c", "--object", str(picture), "--object", put, "--json")
    assert done.json["objects"] == [SHA, put]
    assert {one["sha256"]: one["named"] for one in cli("object", "list", "--json").json} == {
        SHA: True,
        put: True,
    }
    missing = cli("fact", "append", "a", "b", "c", "--object", "0" * 64, "--json", code=None)
    assert missing.error["code"] == "unknown_object"
    assert cli("fact", "append", "a", "b", "c", "--object", "no", "--json", code=2).error


# --- readers --------------------------------------------------------------------------------------


def test_Z4_a_reader_gets_what_its_filter_lets_pass(cli: Cli) -> None:
    cli("mesh", "create", "lab")
    words = "--mesh team --subject pump: --class facts --class state --op fact.append --origin ana"
    said = cli("consumer", "add", "pumps", *words.split(), "--json").json
    assert said["filter"] == {
        "meshes": ["team"],
        "subjects": ["pump:"],
        "classes": ["facts", "state"],
        "ops": ["fact.append"],
        "origins": ["ana"],
    }
    team = ("--mesh", "team")
    cli("fact", "append", "pump:1", "is", "1", *team)
    cli("fact", "append", "valve:1", "is", "1", *team)
    cli("memory", "set", "pump:1", "1", *team)
    cli("fact", "append", "pump:1", "is", "1", "--mesh", "lab")
    cli("state", "set", "pump:2", "1", *team)
    got = cli("fact", "fetch", "pumps", "--json").json
    assert [one["offset"] for one in got] == [1]
    cli("fact", "confirm", "pumps", "5")
    odd = cli("consumer", "add", "odd", "--op", "state.sets", "--json", code=2).error
    assert (odd["code"], odd["message"]) == ("bad_input", "'state.sets' is no op")
    cli("fact", "append", "valve:2", "is", "1", *team)
    # The log keeps what nobody has confirmed: how to let it go is said.
    assert "holdfast fact confirm pumps 6" in cli("fact", "fetch", "pumps").err
    cli("fact", "confirm", "pumps", "6")
    assert cli("fact", "fetch", "pumps").err == "nothing new for pumps\n"
    assert cli("consumer", "add", "x", "--mesh", "no", "--json", code=4).error["code"] == (
        "unknown_mesh"
    )


@pytest.mark.parametrize("served", [True, False], ids=["with a daemon", "without one"])
def test_Z2_a_fetch_waits_for_what_is_new(
    cli: Cli, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("consumer", "add", "screen")
    held, looked = fact._held, threading.Event()

    def waits(*given: object) -> bool:
        looked.set()
        return held(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(fact, "_held", waits)

    def write() -> None:
        assert looked.wait(60)
        with holdfast.open(cli.home, sync="normal") as node:
            node.mesh("team").facts.append("s", "p", 1)

    def story() -> None:
        assert cli("fact", "fetch", "screen", "--wait", "0.01", "--json").json == []
        looked.clear()
        writer = threading.Thread(target=write)
        writer.start()
        (entry,) = cli("fact", "fetch", "screen", "--wait", "60", "--json").json
        writer.join(60)
        assert entry["entity"] == "s"

    if served:
        with running(cli.home):
            story()
    else:
        story()
