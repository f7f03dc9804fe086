"""Audit streams over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rules.limits import AUDIT_PAGE_ROWS
from support.daemon import make_home, running
from support.talk import Talk

AUDIT = "/v1/meshes/team/audit"


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with running(make_home(tmp_path / "home")) as up:
        yield Talk(up, up.unix)


def test_Q14_events_are_appended_once_listed_in_pages_and_verified(talk: Talk) -> None:
    first = talk.ask("POST", f"{AUDIT}/run/events", {"payload": {"n": 0}}, idempotency_key="a")
    assert (first.status, first.json["duplicate"]) == (201, False)
    again = talk.ask("POST", f"{AUDIT}/run/events", {"payload": {"n": 0}}, idempotency_key="a")
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    talk.ask("POST", f"{AUDIT}/run/events", {"payload": {"n": 1}})
    page = talk.ask("GET", f"{AUDIT}/run/events?limit=1").json
    assert [event["payload"] for event in page["events"]] == [{"n": 0}]
    rest = talk.ask("GET", f"{AUDIT}/run/events?after={page['next']}").json
    assert ([event["seq"] for event in rest["events"]], rest["next"]) == ([2], None)
    (chain,) = talk.ask("GET", AUDIT).json["chains"]
    assert (chain["stream"], chain["last"], chain["events"]) == ("run/events", 2, 2)
    verdicts = talk.ask("GET", f"{AUDIT}-verdicts?stream=run/events").json
    assert verdicts["whole"]
    assert verdicts["chains"][0]["missing"] == []
    for bad, status in (
        ("GET /v1/meshes/none/audit", 404),
        (f"GET {AUDIT}/s?after=x", 400),
        (f"GET {AUDIT}/s?limit={AUDIT_PAGE_ROWS + 1}", 400),
        (f"POST {AUDIT}/{'s' * 200}", 400),
    ):
        verb, path = bad.split(" ")
        body = {"payload": 1} if verb == "POST" else None
        assert talk.ask(verb, path, body).status == status, bad
