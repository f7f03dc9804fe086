"""`holdfast capability narrow` and `show`: a right is passed on as less, and says what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.bus.links.link import PeerLink
from support.bus_homes import Homes
from support.cli import Cli
from support.daemon import make_home
from support.waiting import until

SCOPES = ("topic:builds.>", "service:resize")


class People:
    """Ana's daemon runs; Cleo holds a right that Ana gave, and knows Dan."""

    def __init__(self, homes: Homes) -> None:
        self.up = homes.serve("ana")
        self.ana, self.cleo, self.dan = (
            Cli(homes.home("ana") if name == "ana" else make_home(homes.folder / name, name))
            for name in ("ana", "cleo", "dan")
        )
        scopes = [word for scope in SCOPES for word in ("--scope", scope)]
        card = self.cleo("peer", "card").out.strip()
        self.given = self.ana("capability", "give", card, *scopes, "--days", "7").out.strip()
        self.held = self.cleo("capability", "use", self.given).out.strip()
        self.dans_card = self.dan("peer", "card").out.strip()

    def links(self) -> list[PeerLink]:
        """Of Ana's bus; in her loop."""
        host = self.up.daemon.api.bus
        assert host is not None
        return host.bus.links.all()


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    with Homes(tmp_path, "daemon") as homes:
        yield People(homes)


def test_B6_U2_a_right_that_was_narrowed_is_good_for_that_much(
    people: People, caplog: pytest.LogCaptureFixture
) -> None:
    passed = people.cleo(
        *("capability", "narrow", people.held[:12], people.dans_card),
        *("--scope", "topic:builds.linux", "--days", "1"),
    )
    assert "topic:builds.linux" in passed.err
    shown = people.dan("capability", "show", passed.out.strip(), "--json").json
    assert shown["scopes"] == ["topic:builds.linux"]
    whole = people.cleo("capability", "show", people.held, "--json").json
    assert shown["expires_at"] < whole["expires_at"]

    address = people.given.rpartition("@")[2]
    people.dan("capability", "use", passed.out.strip(), "--at", address)
    sent = people.dan("bus", "send", "ana", "green", "--topic", "builds.linux")
    assert "delivered for ana" in sent.err
    # What it may not do waits, and nobody waits with it.
    held = people.dan("bus", "send", "ana", "green", "--topic", "builds.mac")
    assert "spooled for ana" in held.err
    assert "it has topic:builds.linux" in caplog.text

    # Taking back the first one ends the second.
    people.ana("capability", "drop", people.held[:12])
    until(lambda: people.up.run(people.links) == [])
    late = people.dan("bus", "send", "ana", "x", "--topic", "builds.linux", "--wait", "1ms")
    assert "spooled" in late.err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--scope", "topic:>"), "topic:>"),
        (("--scope", "service:delete"), "service:delete"),
        (("--days", "8"), ""),
    ],
)
def test_B6_U2_a_right_cannot_be_widened(people: People, more: tuple[str, ...], why: str) -> None:
    before = people.cleo("capability", "list").out
    narrow = ("capability", "narrow", people.held, people.dans_card)
    refused = people.cleo(*narrow, *more, "--json", code=None)
    assert refused.code != 0
    assert refused.error["code"] == "capability_refused", refused.err
    assert why in refused.error["message"]
    assert people.cleo("capability", "list").out == before


def test_B6_U2_show_says_what_a_right_says_and_changes_nothing(people: People) -> None:
    by_id, by_text = (
        people.cleo("capability", "show", which).out for which in (people.held[:12], people.given)
    )
    assert by_id == by_text.replace("other\n", "held\n"), "the text alone says all the rest"
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in by_id.splitlines())
    assert (lines["id"], lines["issuer"], lines["holder"]) == (people.held, "ana", "cleo")
    assert lines["scopes"] == "service:resize,topic:builds.>"
    assert re.match(r"\d{4}-\d\d-\d\dT", lines["expires at"]), "a time for people"
    assert people.given.partition("@")[0] not in by_id, "the text itself is left out"
    unknown = people.dan("capability", "show", people.held[:12], "--json", code=4)
    assert unknown.error["code"] == "unknown_key"
    spoilt = people.given.partition("@")[0][:-4] + "AAAA"
    forged = people.dan("capability", "show", spoilt, "--json", code=None)
    assert forged.error["code"] == "capability_refused"
    assert people.dan("capability", "list").out == ""


def test_B6_U2_what_is_not_held_cannot_be_narrowed(people: People) -> None:
    refused = people.dan(
        "capability", "narrow", people.given, people.dans_card, "--json", code=None
    )
    assert refused.error["code"] in ("capability_refused", "unknown_key"), refused.err
    nobody = people.cleo("capability", "narrow", people.held, "no card", "--json", code=2)
    assert nobody.error["code"] == "bad_input"
