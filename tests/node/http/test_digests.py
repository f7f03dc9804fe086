"""Digests over HTTP: for whoever may read the mesh, and only so many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest

from holdfast.node.log.digests import BucketRows, Digests, digests
from holdfast.node.settings import Settings
from holdfast.rules.digests import TABLES
from holdfast.rules.limits import DIGESTS_AT_ONCE_MAX
from support.daemon import Plain, make_home, running
from support.talk import Talk


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    home = make_home(tmp_path / "home", "ana", "team", "other")
    with running(home, Settings(listen="127.0.0.1:0")) as up:
        talk = Talk(up, up.unix)
        for mesh in ("team", "other"):
            talk.api.node.mesh(mesh).state.set("k", mesh)
        yield talk


def rows(talk: Talk, **query: str) -> Plain:
    return talk.ask("GET", f"/v1/digests/rows?{urlencode(query)}")


def test_P3_a_daemon_gives_the_digests_of_its_tables(talk: Talk) -> None:
    answer = talk.ask("GET", "/v1/digests")
    assert answer.status == 200
    said = msgspec.json.decode(answer.body, type=Digests)
    with talk.engine.store.read() as reader:
        assert said == digests(reader, "ana")
    assert set(said.meshes) == {"team", "other"}
    assert set(said.meshes["team"].tables) == set(TABLES)
    only = talk.ask("GET", "/v1/digests?mesh=team").json
    assert list(only["meshes"]) == ["team"]


def test_P3_a_daemon_gives_the_rows_of_a_bucket(talk: Talk) -> None:
    said = talk.ask("GET", "/v1/digests").json
    (bucket,) = said["meshes"]["team"]["tables"]["state"]["buckets"]
    answer = rows(talk, mesh="team", table="state", bucket=bucket)
    held = msgspec.json.decode(answer.body, type=BucketRows)
    assert (held.head, held.bucket, held.more) == (2, bucket, False)
    (row,) = held.rows
    assert (row.key, row.row["value"]) == (["k"], '"team"')
    assert row.digest == said["meshes"]["team"]["tables"]["state"]["buckets"][bucket]


def test_P3_only_meshes_that_were_granted_are_told_of(talk: Talk) -> None:
    token = talk.api.trust.add_token("reader", reads=["team", "soon"])
    reader = Talk(talk.up, talk.up.tls, token)
    assert list(reader.ask("GET", "/v1/digests").json["meshes"]) == ["team"]
    assert reader.ask("GET", "/v1/digests?mesh=other").code == "not_granted"
    for table in TABLES:
        answer = rows(reader, mesh="other", table=table, bucket="00")
        assert answer.code == "not_granted"
    assert rows(reader, mesh="team", table="log", bucket="00").status == 200
    assert Talk(talk.up, talk.up.tls).ask("GET", "/v1/digests").code == "bad_token"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/digests?mesh=nowhere", "unknown_mesh"),
        ("/v1/digests?table=state", "bad_input"),
        ("/v1/digests/rows?table=state&bucket=00", "bad_input"),
        ("/v1/digests/rows?mesh=team&bucket=00", "bad_input"),
        ("/v1/digests/rows?mesh=team&table=state", "bad_input"),
        ("/v1/digests/rows?mesh=team&table=models&bucket=00", "bad_input"),
        ("/v1/digests/rows?mesh=team&table=state&bucket=0", "bad_input"),
        ("/v1/digests/rows?mesh=team&table=state&bucket=zz", "bad_input"),
        ("/v1/digests/rows?mesh=nowhere&table=state&bucket=00", "unknown_mesh"),
    ],
)
def test_P3_a_question_that_makes_no_sense_is_refused(talk: Talk, path: str, code: str) -> None:
    assert talk.ask("GET", path).code == code


def test_P3_a_node_makes_only_so_many_digests_at_a_time(talk: Talk) -> None:
    now = talk.api.gate.now
    now["digest"] += DIGESTS_AT_ONCE_MAX
    assert talk.ask("GET", "/v1/digests").code == "too_many"
    now["digest"] -= DIGESTS_AT_ONCE_MAX
    assert talk.ask("GET", "/v1/digests").status == 200
    assert now["digest"] == 0
