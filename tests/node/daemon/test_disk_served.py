"""A daemon whose disk fills up: what callers and links hear of it, and how they go on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.links.registry import Links
from holdfast.node.settings import Settings
from holdfast.node.trust.trust import Trust
from holdfast.node.upkeep.disk import measure
from holdfast.storage.files.home import HomePaths
from support.daemon import UpInThread, ask, connect, make_home, running

LARGE = "x" * 60_000


def append(up: UpInThread, value: object) -> Any:
    fact = {"subject": "sensor", "predicate": "says", "object": value}
    body = json.dumps(fact).encode()
    return ask(
        up.unix, "POST", "/v1/facts/append", body, headers={"content-type": "application/json"}
    )


def post(up: UpInThread, path: str, document: object) -> Any:
    body = json.dumps(document).encode()
    return ask(up.unix, "POST", path, body, headers={"content-type": "application/json"})


def level(up: UpInThread) -> str:
    disk = up.daemon.api.disk
    assert disk is not None
    return disk.look().level


def test_Z7_a_daemon_at_its_limit_refuses_facts_and_serves_readers(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with running(home, Settings(disk_limit="3 MiB")) as up:
        post(up, "/v1/consumers", {"consumer": "reader"})
        said = []
        while (refused := append(up, LARGE)).status == 201:
            said.append(level(up))
        assert "high" in said, "announced ahead"
        assert (refused.status, refused.code) == (507, "disk_full")
        assert "holdfast consumer retire" in refused.json["error"]["hint"]
        assert ask(up.unix, "GET", "/readyz").status == 200, "still of use"
        assert ask(up.unix, "GET", "/v1/status").json["disk"]["level"] == "full"
        head = len(said)
        fetched = post(up, "/v1/facts/fetch", {"consumer": "reader", "limit": 1000})
        assert len(fetched.json["entries"]) == head
        confirmed = post(up, "/v1/facts/confirm", {"consumer": "reader", "offset": head})
        assert confirmed.json["lag"] == 0
        assert ask(up.unix, "DELETE", "/v1/consumers/reader").status == 204


def news(up: UpInThread) -> Generator[tuple[str, Any], None, None]:
    """What the daemon tells, as it happens."""
    connection = connect(up.unix)
    try:
        connection.request("GET", "/v1/events")
        stream = connection.getresponse()
        assert stream.status == 200
        yield "connected", None
        event = ""
        while line := _line(stream):
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield event, json.loads(line.removeprefix("data: "))
    finally:
        connection.close()


def _line(stream: http.client.HTTPResponse) -> str:
    """The next line that says something."""
    while raw := stream.readline():
        if raw.strip():
            return raw.decode().strip()
    return ""


def full_for(home: Path) -> Callable[[HomePaths], tuple[int, int]]:
    """A look at the disk that finds no room, for one home only."""

    def look(paths: HomePaths) -> tuple[int, int]:
        return (1000, 0) if paths.root == home else measure(paths)

    return look


def join(reader: Path, source: Path, url: str) -> None:
    """One zone reads another."""
    with holdfast.open(source, sync="normal") as node:
        there = Trust(node._engine, HomePaths(source))
        with holdfast.open(reader, sync="normal") as node:
            here = Trust(node._engine, HomePaths(reader))
            there.trust(here.card(), reads=["team"])
            here.trust(there.card())
            Links(node._engine, here).add("from-ana", url, "ana", meshes=["team"])


def test_Z7_a_link_into_a_full_disk_waits_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, ben = make_home(tmp_path / "ana"), make_home(tmp_path / "ben", "ben")
    with running(ana, Settings(listen="127.0.0.1:0")) as source:
        join(ben, ana, source.tls)
        with running(ben) as reader:
            told = news(reader)
            assert next(told)[0] == "connected"
            monkeypatch.setattr("holdfast.node.upkeep.disk.measure", full_for(ben))
            assert level(reader) == "full"
            assert append(source, 1).status == 201
            states = (data["state"] for event, data in told if event == "link")
            assert next(state for state in states if state == "disk_full")
            assert ask(reader.unix, "GET", "/v1/log").json["head"] == 0, "nothing half taken"
            monkeypatch.undo()
            assert level(reader) == "ok"
            entry = next(data for event, data in told if event == "entry")
            assert entry["origin"] == "ana"
            told.close()
