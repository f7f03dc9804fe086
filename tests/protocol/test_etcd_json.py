"""What is said to an etcd, and what is understood of its answers."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import etcd_json
from holdfast.protocol.etcd_json import (
    CompactionRequest,
    GatewayError,
    MembersAnswer,
    MembersRequest,
    RangeAnswer,
    RangeRequest,
    StatusAnswer,
    StatusRequest,
    TxnAnswer,
    TxnRequest,
    WatchAnswer,
    WatchCreate,
    WatchRequest,
    decode,
    delete,
    encode,
    get,
    put,
    read_error,
    read_line,
    value_is,
    version_is,
)
from holdfast.rules.errors import BadAnswer
from holdfast.rules.etcd.entry import HeldKey
from holdfast.rules.etcd.faults import fault_of

ANSWERS = Path(__file__).with_name("etcd_answers.txt")


def _answers() -> list[tuple[str, str, str]]:
    lines = ANSWERS.read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines if line and not line.startswith("#")]
    return [(status, body, fault) for _, status, body, fault in rows]


@pytest.mark.parametrize(("status", "body", "fault"), _answers())
def test_Q3_an_answer_with_an_error_means_what_its_code_and_message_say(
    status: str, body: str, fault: str
) -> None:
    if status == "watch":
        told = read_line(body.encode())
        assert isinstance(told, GatewayError)
        assert fault_of(0, told.code, told.message) == fault
    else:
        told = read_error(body.encode())
        assert fault_of(int(status), told.code, told.message) == fault


def test_Q3_requests_have_the_names_that_a_gateway_knows() -> None:
    """A gateway ignores every other name; a comparison without its field compares with 0."""
    txn = TxnRequest(
        compare=(version_is(b"k", 0), value_is(b"n", b"\xff")),
        success=(put(b"k", b"v"), delete(b"d")),
        failure=(get(b"k"),),
    )
    assert encode(txn) == (
        b'{"compare":[{"key":"aw==","version":"0","target":"VERSION","result":"EQUAL"},'
        b'{"key":"bg==","value":"/w==","target":"VALUE","result":"EQUAL"}],'
        b'"success":[{"request_put":{"key":"aw==","value":"dg=="}},'
        b'{"request_delete_range":{"key":"ZA=="}}],'
        b'"failure":[{"request_range":{"key":"aw=="}}]}'
    )
    listing = RangeRequest(key=b"a", range_end=b"b", revision="7", limit="2", keys_only=True)
    assert encode(listing) == (
        b'{"key":"YQ==","range_end":"Yg==","revision":"7","limit":"2","keys_only":true}'
    )
    create = WatchCreate(
        key=b"a", range_end=b"b", start_revision="9", filters=("NODELETE",), fragment=True
    )
    assert encode(WatchRequest(create_request=create)) == (
        b'{"create_request":{"key":"YQ==","range_end":"Yg==","start_revision":"9",'
        b'"filters":["NODELETE"],"fragment":true}}'
    )
    assert encode(CompactionRequest(revision="5")) == b'{"revision":"5"}'
    assert encode(MembersRequest(linearizable=True)) == b'{"linearizable":true}'
    assert encode(StatusRequest()) == b"{}"


def test_Q3_what_an_answer_leaves_out_is_nothing() -> None:
    assert decode(b"{}", TxnAnswer) == TxnAnswer()
    assert decode(b'{"header":{"revision":"9223372036854775807"}}', RangeAnswer).one is None
    found = decode(
        b'{"header":{"cluster_id":"18446744073709551615","revision":"12","raft_term":"2"},'
        b'"kvs":[{"key":"aw==","create_revision":"3","mod_revision":"4","version":"2",'
        b'"value":"dg=="}],"count":"1"}',
        RangeAnswer,
    )
    assert found.one == HeldKey(b"k", b"v", 4, 2)


def test_Q3_a_watch_is_read_line_by_line() -> None:
    first = read_line(b'{"result":{"header":{"revision":"4"},"created":true}}')
    assert isinstance(first, WatchAnswer)
    assert first.created
    line = read_line(
        b'{"result":{"header":{"revision":"40"},"events":['
        b'{"kv":{"key":"aw==","mod_revision":"5","version":"1"}},'
        b'{"type":"DELETE","kv":{"key":"aw==","mod_revision":"6"}}]}}'
    )
    assert isinstance(line, WatchAnswer)
    assert [event.type for event in line.events] == ["PUT", "DELETE"]
    gone = read_line(b'{"result":{"canceled":true,"compact_revision":"17"}}')
    assert isinstance(gone, WatchAnswer)
    assert gone.compact_revision == 17


def test_Q13_status_and_members_are_read_with_the_names_of_etcd() -> None:
    status = decode(b'{"version":"3.5.1","dbSize":"20480","leader":"7"}', StatusAnswer)
    assert (status.version, status.db_size, status.leader) == ("3.5.1", 20480, 7)
    known = decode(b'{"members":[{"ID":"7","name":"a","isLearner":true}]}', MembersAnswer).members
    assert [(member.id, member.name, member.is_learner) for member in known] == [(7, "a", True)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"header":{"revision":"-1"}}',
        b'{"header":{"revision":"9223372036854775808"}}',
        b'{"header":{"revision":"%s"}}' % (b"9" * 5000),
        b'{"responses":{"a":1}}',
        b'{"responses":[{"response_range":{"kvs":[{"key":"_-=="}]}}]}',
        b'{"succeeded":"perhaps"}',
        b'{"responses":[%s]}' % b",".join([b"{}"] * 10_001),
    ],
)
def test_Q3_an_answer_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        decode(body, TxnAnswer)


def test_Q3_an_answer_to_other_questions_is_refused() -> None:
    for body in (b"{}", b'{"responses":[{"response_put":{}}]}'):
        with pytest.raises(BadAnswer):
            decode(body, TxnAnswer).ranges(1)


@given(st.binary(max_size=200))
def test_Q3_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    assert isinstance(read_error(body), GatewayError)
    for read in (read_line, lambda it: decode(it, TxnAnswer)):
        with suppress(BadAnswer):
            read(body)


def test_Q11_secrets_are_not_shown() -> None:
    asked = etcd_json.Credentials(name="ana", password="hidden")
    assert "hidden" not in repr(asked) + repr(etcd_json.TokenAnswer(token="hidden"))
