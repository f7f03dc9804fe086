"""Telemetry over HTTP: for this node's user, and for nobody else."""

from __future__ import annotations

from pathlib import Path

from holdfast.rules.limits import TELEMETRY_PAGE_ROWS
from support.daemon import make_home, running
from support.talk import Talk

PATH = "/v1/meshes/team/telemetry"


def test_Q1_telemetry_is_put_got_listed_and_deleted_over_http(tmp_path: Path) -> None:
    with running(make_home(tmp_path / "home")) as up:
        talk = Talk(up, up.unix)
        put = talk.ask("PUT", f"{PATH}/agent/a/b", {"value": {"pid": 7}, "ttl_ms": 5000})
        assert (put.status, put.json["value"]) == (200, {"pid": 7})
        assert put.json["expires_at"] - put.json["updated_at"] == 5000
        for key in ("x", "y"):
            talk.ask("PUT", f"{PATH}/run/{key}", {"value": key})
        assert talk.ask("GET", f"{PATH}/agent/a/b").json == put.json
        page = talk.ask("GET", f"{PATH}?limit=2").json
        assert ([one["key"] for one in page["entries"]], page["more"]) == (["a/b", "x"], True)
        rest = talk.ask("GET", f"{PATH}?kind=run&after_kind=run&after_key=x").json
        assert ([one["key"] for one in rest["entries"]], rest["more"]) == (["y"], False)
        assert talk.ask("DELETE", f"{PATH}/agent/a/b").status == 204
        for asked, status in (
            (f"GET {PATH}/agent/a/b", 404),
            (f"DELETE {PATH}/agent/a/b", 404),
            ("GET /v1/meshes/none/telemetry", 404),
            (f"GET {PATH}?limit={TELEMETRY_PAGE_ROWS + 1}", 400),
            (f"PUT {PATH}/agent/a", 400),
            (f"PUT {PATH}/{'k' * 200}/a", 400),
            ("PUT /v1/meshes/none/telemetry/agent/a", 404),
        ):
            verb, path = asked.split(" ")
            body = (
                None
                if verb != "PUT"
                else {"value": 1, "ttl_ms": 0 if path == f"{PATH}/agent/a" else 1}
            )
            assert talk.ask(verb, path, body).status == status, asked
