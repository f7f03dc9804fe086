"""`holdfast ping`: one line for each way, a summary, and exit codes that scripts can use."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_up import BrokerUp, broker_at
from support.cli import Cli


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUp]:
    with broker_at(tmp_path_factory.mktemp("hub") / "store") as up:
        yield up


@pytest.fixture(autouse=True)
def here(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    cli("init", "--peer", "ana", "--mesh", "team")


def test_U2_a_broker_is_pinged_without_a_daemon_and_without_a_mesh(cli: Cli, hub: BrokerUp) -> None:
    done = cli("ping", hub.url, "--count", "2", "--interval", "1ms")
    first, second = done.out.splitlines()
    assert first.startswith(f"pong from {hub.url} (broker hub at {hub.url}) in ")
    assert second.endswith(" ms")
    assert "2 of 2 rounds answered; " in done.err
    assert f"it showed the card {hub.card}" in done.err
    known = cli("ping", hub.url, "--count", "1", "--card", hub.card)
    assert "nobody has pinned" not in known.err


def test_U2_a_ping_is_a_document_with_every_try(cli: Cli, hub: BrokerUp) -> None:
    found = cli("ping", hub.url, "--count", "2", "--interval", "1ms", "--json").json
    assert (found["kind"], found["rounds"], found["answered"]) == ("broker", 2, 2)
    assert found["min_ms"] <= found["mean_ms"] <= found["max_ms"]
    assert found["best"]["name"] == "hub"
    assert [len(one["ways"]) for one in found["tries"]] == [1, 1]


def test_U2_a_context_that_names_a_broker_is_one(cli: Cli, hub: BrokerUp) -> None:
    cli("context", "add", "office", "--broker", hub.url, "--card", hub.card)
    done = cli("ping", "office", "--count", "1")
    assert f"broker hub at {hub.url}" in done.out
    assert "nobody has pinned" not in done.err, "the context has its card"


def test_U2_what_does_not_answer_is_an_error_with_what_was_tried(cli: Cli) -> None:
    with socket.socket() as held:  # ours, and nobody listens there
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        done = cli("ping", url, "--count", "1", code=1)
        assert done.out.startswith(f"no answer from {url} (broker ")
        assert f"error: {url} does not answer (tried: broker {url})\nhint: check" in done.err
        refused = cli("ping", url, "--count", "1", "--json", code=1)
        assert refused.error["code"] == "unreachable"
    assert cli("ping", "nobody", "--json", code=4).error["code"] == "unknown_peer"
    assert cli("ping", "ana", "--json", code=2).error["code"] == "bad_input"
    assert cli("ping", code=2).out == ""
    assert json.loads(cli("ping", "x", "--count", "0", "--json", code=2).err)["error"]
