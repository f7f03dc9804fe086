"""What apps mount in a daemon: which requests they get, and how they ask the API that they stand
beside.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

import holdfast
from holdfast.node.http.app import node_routes
from holdfast.node.settings import Settings
from holdfast.rules import limits
from holdfast.rules.errors import BadInput, HoldfastError, OverLimit
from holdfast.service.http import parts
from holdfast.service.http.app import HttpApp
from holdfast.service.http.parts import Part, ask
from holdfast.transport.http_client import Client
from holdfast.transport.http_server import LISTENER
from support.daemon import UpInThread, make_home, running

life: list[str] = []


def made(api: Any, app: HttpApp) -> Sequence[Part]:
    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/bad":
            raise BadInput("this is bad")
        await PlainTextResponse(f"whole {scope['path']}")(scope, receive, send)

    async def asking(scope: Scope, receive: Receive, send: Send) -> None:
        token = dict(scope["headers"]).get(b"authorization", b"").decode()
        found = await ask(
            app,
            "PUT",
            "/v1/meshes/team/state/a%b/é",
            listener=scope[LISTENER],
            query=[("warnings", "keep")],
            headers={"authorization": token} if token else {},
            body=b'{"value":1}',
        )
        body = {"status": found.status, "said": json.loads(found.body)}
        await JSONResponse(body)(scope, receive, send)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await ask(app, "GET", "/v1/events", listener="unix")

    @asynccontextmanager
    async def living() -> AsyncIterator[None]:
        life.append("begun")
        yield
        life.append(f"ended while {api.phase}")

    return [
        Part("/", whole, life=living),
        Part("/asking", asking),
        Part("/events", large, kind=lambda scope: "stream"),
    ]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpInThread]:
    home = make_home(tmp_path_factory.mktemp("parts") / "home")
    with running(home, Settings(tcp="127.0.0.1:0"), parts=made) as started:
        yield started


def get(address: str, path: str, **headers: str) -> Any:
    with closing(Client(address)) as client:
        return client.call("GET", path, headers=headers)


def test_U5_a_part_gets_what_no_call_takes_and_the_longest_prefix_wins(up: UpInThread) -> None:
    assert get(up.unix, "/").body == b"whole /"
    assert get(up.unix, "/askings").body == b"whole /askings"
    assert json.loads(get(up.unix, "/v1/log").body)["peer"] == "ana"
    with pytest.raises(HoldfastError, match="this is bad"):
        get(up.unix, "/bad")


def test_U5_a_part_asks_with_the_rights_of_its_caller_and_no_others(up: UpInThread) -> None:
    own = json.loads(get(up.unix, "/asking").body)
    assert own["status"] == 200
    with closing(Client(up.unix)) as client:
        row = json.loads(client.call("GET", "/v1/meshes/team/state/a%25b/%C3%A9").body)
    assert row["key"] == "a%b/é"
    assert json.loads(get(up.tcp, "/asking").body)["said"]["error"]["code"] == "bad_token"
    reading = up.daemon.api.trust.add_token("reads", reads=["team"])
    refused = json.loads(get(up.tcp, "/asking", Authorization=f"Bearer {reading}").body)
    assert (refused["status"], refused["said"]["error"]["code"]) == (403, "not_granted")


def test_U5_an_answer_that_is_too_large_for_a_part_is_cut_off(
    up: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ANSWER_BYTES_MAX", 2)
    assert limits.PART_ANSWER_BYTES_MAX > 2
    with pytest.raises(OverLimit, match="more than 2 bytes"):
        get(up.unix, "/events")


def test_U5_a_part_lives_as_long_as_requests_may_come(tmp_path: Path) -> None:
    life.clear()
    with running(make_home(tmp_path / "home"), parts=made):
        assert life == ["begun"]
    assert life == ["begun", "ended while ready"]


def test_U5_a_streamed_answer_is_whole_and_the_loop_goes_on_turning(tmp_path: Path) -> None:
    """A handler that streams waits for its client to go: it must not be told anything for ever."""
    home = make_home(tmp_path / "home")
    with holdfast.open(home) as node:
        node.mesh("team").files.share("f", b"x" * 100_000)
    with running(home) as up:
        api = up.daemon.api
        app = HttpApp(api, node_routes())
        asked = ask(app, "GET", "/v1/meshes/team/files/f", listener="unix")
        assert up.wait_for(asked).body == b"x" * 100_000


def test_U5_a_part_that_asks_for_a_call_that_is_not_there_gets_404_and_no_page(
    up: UpInThread,
) -> None:
    """As `/v1/nothing` of a newer version, or `/log`, which is a page and no call."""
    app = HttpApp(up.daemon.api, node_routes())
    app.parts = made(up.daemon.api, app)
    for path in ("/", "/log", "/v1/nothing", "/asking"):
        for method in ("GET", "POST"):
            asked = ask(app, method, path, listener="unix", headers={"accept": "text/html"})
            found = up.wait_for(asked)
            assert found.status == 404, (method, path)
            assert json.loads(found.body)["error"]["code"] == "no_route", (method, path)
