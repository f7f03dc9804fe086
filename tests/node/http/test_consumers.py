"""Consumers over HTTP: who may see, register and retire which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from holdfast.node.settings import Settings
from holdfast.service.caller import Caller
from support.daemon import make_home, running
from support.talk import Talk


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    home = make_home(tmp_path / "home", "ana", "team", "other")
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        yield Talk(up, up.unix)


def with_token(talk: Talk, name: str, *reads: str) -> Talk:
    secret = talk.api.trust.add_token(name, reads=reads)
    return Talk(talk.up, talk.up.tcp, secret)


def names(talk: Talk) -> list[str]:
    return [one["name"] for one in talk.ask("GET", "/v1/consumers").json["consumers"]]


def test_Z2_a_registration_is_made_once_and_then_found_as_it_is(talk: Talk) -> None:
    talk.append_many(3, mesh="team")
    first = talk.register()
    assert (first["position"], first["frontier"], first["lag"]) == (1, 0, 3)
    talk.confirm(offset=2)
    again = talk.register()
    assert (again["position"], again["created_at"]) == (3, first["created_at"])
    assert names(talk) == ["reader"]


@pytest.mark.parametrize(("start", "position"), [("start", 1), ("now", 4), (3, 3), (4, 4)])
def test_Z2_a_consumer_begins_where_it_says(talk: Talk, start: str | int, position: int) -> None:
    talk.append_many(3, mesh="team")
    assert talk.register(start=start)["position"] == position


def test_Z5_a_consumer_cannot_begin_where_the_log_does_not(talk: Talk) -> None:
    talk.append_many(5, mesh="team")
    talk.truncate(3)
    before = talk.state()
    gone = talk.ask("POST", "/v1/consumers", {"consumer": "r", "from": 2})
    assert (gone.status, gone.code, gone.json["error"]["first_available"]) == (410, "truncated", 3)
    late = talk.ask("POST", "/v1/consumers", {"consumer": "r", "from": 7})
    assert (late.status, late.code) == (409, "past_end")
    assert talk.state() == before


def test_Z2_another_filter_replaces_the_one_before_and_keeps_the_place(talk: Talk) -> None:
    for n in range(6):
        talk.append(mesh="team" if n % 2 else "other")
    talk.register(filter={"meshes": ["team"]})
    assert talk.offsets() == [2, 4, 6]
    talk.confirm(offset=2)
    assert talk.register(filter={"meshes": ["other"]})["frontier"] == 2
    assert talk.offsets() == [3, 5]


@pytest.mark.parametrize("name", ["plain", "with space", "zone:a/b c", "a/b/c", "é/日本", "50%"])
def test_Z5_any_consumer_can_be_retired_by_its_name(talk: Talk, name: str) -> None:
    for safe in ("/", ""):  # a slash in it may be written either way
        talk.register(name)
        path = f"/v1/consumers/{quote(name, safe=safe)}"
        assert (talk.ask("DELETE", path).status, names(talk)) == (204, [])
        gone = talk.ask("DELETE", path)
        assert (gone.status, gone.code) == (404, "unknown_consumer")


def test_Z5_a_consumer_declares_for_how_long_it_is_waited_for(talk: Talk) -> None:
    assert talk.register(retire_ms=60_000, retire_lag=1000)["retire_ms"] == 60_000
    for wrong in ({"retire_ms": 0}, {"retire_lag": -1}, {"retire_ms": "1"}):
        answer = talk.ask("POST", "/v1/consumers", {"consumer": "other", **wrong})
        assert (answer.status, answer.code) == (400, "bad_input")
    assert names(talk) == ["reader"]


def test_U4_a_token_reads_by_consumers_of_its_own_name_only(talk: Talk) -> None:
    spark = with_token(talk, "spark", "team")
    other = with_token(talk, "other", "*")
    talk.register("mine")
    spark.register("token:spark/job")
    other.register("token:other/job")
    assert names(talk) == ["mine", "token:other/job", "token:spark/job"]
    assert names(spark) == ["token:spark/job"]
    before = talk.state()
    for name in ("mine", "token:other/job", "token:spark", "token:spark/", "token:sparks/job"):
        answers = [
            spark.ask("POST", "/v1/consumers", {"consumer": name}),
            spark.ask("POST", "/v1/facts/fetch", {"consumer": name}),
            spark.confirm(name, offset=0),
            spark.ask("DELETE", f"/v1/consumers/{quote(name)}"),
        ]
        assert {(answer.status, answer.code) for answer in answers} == {(403, "not_granted")}
    assert talk.state() == before
    assert spark.ask("DELETE", "/v1/consumers/token:spark/job").status == 204


def test_U4_a_token_is_given_only_the_meshes_that_it_may_read(talk: Talk) -> None:
    spark = with_token(talk, "spark", "team")
    for n in range(4):
        talk.append(mesh="team" if n % 2 else "other")
    spark.register("token:spark/job")
    batch = spark.fetch("token:spark/job")
    assert [entry["mesh"] for entry in batch["entries"]] == ["team", "team"]
    assert batch["upto"] == 4
    asked = {"consumer": "token:spark/more", "filter": {"meshes": ["other"]}}
    refused = spark.ask("POST", "/v1/consumers", asked)
    assert (refused.status, refused.code) == (403, "not_granted")


def test_U4_what_only_the_nodes_own_user_may_do_is_refused_to_a_token(talk: Talk) -> None:
    spark = with_token(talk, "spark", "*")
    before = talk.state()
    fact = {"mesh": "team", "subject": "s", "predicate": "p", "object": 1}
    for answer in (
        spark.ask("POST", "/v1/facts/append", fact),
        spark.ask("PUT", "/v1/objects", b"content"),
        spark.ask("PUT", f"/v1/objects/{'ab' * 32}", b"content"),
    ):
        assert (answer.status, answer.code) == (403, "not_granted")
    assert talk.state() == before


def test_U4_a_token_of_the_scope_all_may_do_everything_on_loopback(talk: Talk) -> None:
    secret = talk.api.trust.add_token("everything")
    local = Talk(talk.up, talk.up.tcp, secret)
    local.append(mesh="team")
    local.register("any name")
    assert local.offsets("any name") == [1]


def test_Z8_a_zone_sees_only_consumers_that_it_registered_itself(talk: Talk) -> None:
    """The name alone does not tell: zone `a` could register what looks like one of zone `a/b`."""
    from holdfast.node.http.consumers import _is_own
    from holdfast.node.log import serve
    from holdfast.protocol.log_wire import Registration

    one, other = Caller("zone", "a"), Caller("zone", "a/b")
    serve.register(talk.engine, other, Registration(consumer="zone:a/b/c"))
    with talk.engine.store.read() as reader:
        (row,) = reader.consumer_list()
    assert (_is_own(one, row), _is_own(other, row)) == (False, True)
    assert _is_own(Caller("local"), row)
    assert not _is_own(Caller("token", "a"), msgspec.structs.replace(row, zone=""))
