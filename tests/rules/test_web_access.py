"""Which web pages may talk to a service, and by which names it may be called."""

from __future__ import annotations

import pytest

from holdfast.rules.errors import BadInput
from holdfast.rules.web_access import WebAccess, web_access

OPEN = web_access("board.example, 10.0.0.7,fd00::1", ["https://page.example", "http://[::1]:3000"])


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("localhost", False),
        ("LocalHost:7420", False),
        ("localhost.", False),
        ("node.localhost:80", False),
        ("127.0.0.1", False),
        ("127.8.9.1:7420", False),
        ("[::1]:7420", False),
        ("board.example:7420", False),
        ("10.0.0.7:1", False),
        ("[fd00::1]:7420", False),
        ("evil.example", True),
        ("localhost.evil.example", True),
        ("evillocalhost", True),
        ("127.0.0.1.evil.example", True),
        ("10.0.0.8", True),
        ("0.0.0.0", True),
        ("127.0.0.1@evil.example", True),
        ("", True),
        ("[::1].evil.example", True),
        ("\xff", True),
    ],
)
def test_D10_loopback_is_called_by_its_names_only(host: str, refused: bool) -> None:
    raw = host.encode("latin-1")
    found = OPEN.refusal("tcp", [raw], [])
    assert (found is not None and found.code == "host_not_allowed") == refused
    assert OPEN.refusal("tls", [raw], []) is None
    assert OPEN.refusal("unix", [raw], []) is None


def test_D10_two_hosts_are_none_and_a_program_may_name_none() -> None:
    assert OPEN.refusal("tcp", [b"localhost", b"localhost"], []) is not None
    assert OPEN.refusal("tcp", [], []) is None


@pytest.mark.parametrize(
    ("listener", "host", "origin", "refused"),
    [
        ("tcp", "localhost:7420", "http://localhost:7420", False),
        ("tcp", "localhost:7420", "http://localhost:7421", True),
        ("tcp", "localhost:7420", "http://127.0.0.1:7420", True),
        ("tcp", "localhost:7420", "https://localhost:7420", True),
        ("tls", "hub.example", "https://hub.example", False),
        ("tls", "hub.example", "http://hub.example", True),
        ("unix", "localhost", "http://localhost", True),
        ("tcp", "localhost", "null", True),
        ("tcp", "localhost", "", True),
        ("tcp", "localhost", "https://evil.example", True),
        ("unix", "localhost", "https://page.example", False),
        ("tls", "hub.example", "http://[::1]:3000", False),
        ("tcp", "localhost", "https://page.example.evil", True),
    ],
)
def test_D15_only_pages_of_the_service_itself_and_allowed_ones_get_in(
    listener: str, host: str, origin: str, refused: bool
) -> None:
    found = OPEN.refusal(listener, [host.encode()], [origin.encode()])
    assert (found is not None and found.code == "origin_not_allowed") == refused
    twice = OPEN.refusal(listener, [host.encode()], [origin.encode()] * 2)
    assert twice is not None


@pytest.mark.parametrize(
    ("hosts", "origins"),
    [
        (["Board.example"], []),
        (["board.example:80"], []),
        (["http://board.example"], []),
        ([""], []),
        ("a,,b", []),
        ([], ["board.example"]),
        ([], ["https://board.example/"]),
        ([], ["HTTPS://board.example"]),
        ([], ["null"]),
        ([], ["*"]),
        ([], ["https://me@board.example"]),
        ([], ["https://[board"]),
    ],
)
def test_D10_a_setting_that_would_never_match_is_refused(
    hosts: list[str] | str, origins: list[str]
) -> None:
    with pytest.raises(BadInput):
        web_access(hosts, origins)


def test_D10_nothing_is_allowed_unless_it_is_named() -> None:
    assert web_access([], "") == WebAccess()
