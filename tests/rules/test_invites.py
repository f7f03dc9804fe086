"""The text of an invite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadInput, HoldfastError
from holdfast.rules.invites import (
    PREFIX,
    Invite,
    check_broker_url,
    digest,
    format_invite,
    parse_invite,
)
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.links import check_url

SECRET = bytes(range(32))
CARD = card_of("relay", public_key(b"s" * 32))
INVITE = Invite("https://broker.example:7420", CARD, "team", SECRET)


def test_D15_an_invite_comes_back_as_it_was_written() -> None:
    text = format_invite(INVITE)
    assert parse_invite(text) == INVITE
    assert parse_invite(f"  {text}\n") == INVITE


def test_D15_an_invite_is_one_word_for_every_shell() -> None:
    assert set(format_invite(INVITE)[len(PREFIX) :]) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    )


def test_D15_the_secret_stands_in_no_repr_and_its_digest_is_another() -> None:
    assert "secret" not in repr(INVITE)
    assert digest(SECRET) != SECRET
    assert digest(SECRET) == digest(SECRET) != digest(bytes(32))


@given(st.data())
def test_D15_a_text_that_was_cut_or_changed_is_refused(data: st.DataObject) -> None:
    text = format_invite(INVITE)
    at = data.draw(st.integers(len(PREFIX), len(text) - 1))
    other = data.draw(st.sampled_from("abcXYZ019-_ "))
    for broken in (text[:at], text[:at] + other + text[at + 1 :], text + other.strip() + "A"):
        if broken.strip() != text:
            with pytest.raises(BadInput):
                parse_invite(broken)


@given(st.text() | st.text("abcABC012-_").map(lambda end: PREFIX + end))
def test_R4_no_text_breaks_the_reader(text: str) -> None:
    refused = ""
    try:
        parse_invite(text)
    except HoldfastError as error:
        refused = error.message
    # What was given may be a secret of something else.
    assert len(text) < 3 or text not in refused


@pytest.mark.parametrize(
    "changed",
    [
        Invite("ftp://broker.example", CARD, "team", SECRET),
        Invite("http://broker.example:7420", CARD, "team", SECRET),
        Invite("https://", CARD, "team", SECRET),
        Invite(INVITE.url, "not a card", "team", SECRET),
        Invite(INVITE.url, CARD, "No Mesh", SECRET),
        Invite(INVITE.url, CARD, "team", b"short"),
    ],
)
def test_D15_an_invite_that_leads_nowhere_is_not_written(changed: Invite) -> None:
    with pytest.raises(BadInput):
        format_invite(changed)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:7420",
        "https://user:pw@host:1",
        "https://host:99999",
        "https://host:0",
        "https://host/path",
        "https://host?x=1",
        "host:7420",
        "https://ho\nst",
        "",
    ],
)
def test_D15_only_an_address_that_is_safe_is_taken(url: str) -> None:
    with pytest.raises(BadInput):
        check_broker_url(url)


@pytest.mark.parametrize(
    "url", ["https://host", "https://host:1/", "http://127.0.0.1:5", "http://[::1]:5"]
)
def test_D15_a_broker_is_reached_by_tls_or_on_this_machine(url: str) -> None:
    assert check_broker_url(url) == url


PASSWORD = "hunter2"


@pytest.mark.parametrize("check", [check_broker_url, check_url])
@pytest.mark.parametrize(
    "url",
    [
        f"https://ana:{PASSWORD}@host:1",
        f"https://{PASSWORD}@host:1/path",
        f"https://ana:a?b#c@{PASSWORD}@host:1",
        f"ana:{PASSWORD}@host:1",
        f"https://host:1?token={PASSWORD}",
        f"https://host:1/#{PASSWORD}",
        f"https://ana:{PASSWORD}@host:port",
        f"https://ana:{PASSWORD}@[::1",
        f"https://ana\n:{PASSWORD}@host",
    ],
)
def test_D15_an_address_that_is_refused_is_not_repeated_with_its_password(
    check: Callable[[str], str], url: str
) -> None:
    with pytest.raises(BadInput) as refused:
        check(url)
    said = f"{refused.value} {refused.value.hint}"
    assert PASSWORD not in said
    assert "host" in said or "::1" in said
