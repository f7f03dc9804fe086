"""Web pages of others, at every listener of nodes and brokers and at every way in."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

import pytest

from holdfast.broker.http.app import broker_routes
from holdfast.node.http.app import node_routes
from holdfast.node.settings import Settings
from holdfast.service.http.route import Route
from support.broker_people import Person, ask, broker_up, exchange
from support.daemon import make_home, running

UPGRADE = (
    "GET /v1/sync HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
EVIL = "origin: https://evil.example\r\nhost: localhost\r\n"
REBOUND = "host: evil.example\r\n"
PROGRAM = "host: localhost\r\n"


def raw_call(route: Route, more: str) -> str:
    path = route.path.replace(":path", "").replace("{", "").replace("}", "")
    size = "" if route.method == "GET" else "content-length: 2\r\n"
    return f"{route.method} {path} HTTP/1.1\r\nconnection: close\r\n{size}{more}\r\n{{}}"


def told(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return status, json.loads(body)["error"]["code"] if status in (403, 421) else ""


def test_D15_no_page_of_others_gets_anything_from_a_broker(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, allowed_origins="https://page.example") as up:
            calls = [raw_call(route, "%s") for route in broker_routes()]
            for call in [*calls, UPGRADE + "%s\r\n"]:
                for unix in (False, True):
                    found = told(await exchange(up, (call % EVIL).encode(), unix=unix))
                    assert found == (403, "origin_not_allowed"), call
                found = told(await exchange(up, (call % REBOUND).encode()))
                assert found == (421, "host_not_allowed"), call
            assert not up.broker.connections
            assert not any(up.api.counts.answers.values())  # no call got as far as a route
            # The fast path, with a session that is good.
            ana = Person("ana")
            await ana.register(up, "team")
            raw = ana.change("team", "k", 1)
            for name, value in (("origin", "https://evil.example"), ("origin", "null")):
                lines = {name: value, "connection": "keep-alive"}
                assert (await ana.hand_in(up, "team", raw, headers=lines)).status == 403
            allowed = {"origin": "https://page.example"}
            assert (await ana.hand_in(up, "team", raw, headers=allowed)).status == 201
            assert (await ask(up, "GET", "/healthz", headers=allowed)).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["unix", "tcp", "tls"])
def test_D10_no_page_of_others_gets_anything_from_a_node(tmp_path: Path, kind: str) -> None:
    home = make_home(tmp_path / "home", "ana", "team")
    with running(home, Settings(tcp="127.0.0.1:0", listen="127.0.0.1:0")) as up:

        def exchange(raw: str) -> bytes:
            if kind == "unix":
                one = socket.socket(socket.AF_UNIX)
                one.connect(up.unix.removeprefix("unix:"))
            else:
                address = up.tcp if kind == "tcp" else up.tls
                host, _, port = address.rpartition("/")[2].rpartition(":")
                one = socket.create_connection((host, int(port)))
            if kind == "tls":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                one = context.wrap_socket(one)
            with one:
                one.settimeout(30)
                one.sendall(raw.encode())
                answer = b""
                while part := one.recv(65_536):
                    answer += part
                return answer

        # One call for each path on the socket; one elsewhere: the way in is the same for all.
        routes = node_routes() if kind == "unix" else node_routes()[:1]
        for route in routes:
            assert told(exchange(raw_call(route, EVIL))) == (403, "origin_not_allowed"), route.path
        health = next(route for route in node_routes() if route.path == "/healthz")
        assert told(exchange(raw_call(health, PROGRAM))) == (200, "")
        rebound = told(exchange(raw_call(health, REBOUND)))
        assert rebound == ((421, "host_not_allowed") if kind == "tcp" else (200, ""))
        own = f"host: 127.0.0.1:{up.tcp.rpartition(':')[2]}\r\norigin: {up.tcp}\r\n"
        assert told(exchange(raw_call(health, own)))[0] == (200 if kind == "tcp" else 403)
