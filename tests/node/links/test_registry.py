"""Links as they are stored: added, changed, removed, and what they set aside."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.node.library.node import Node
from holdfast.node.links import receive
from holdfast.node.links.registry import Links
from holdfast.node.links.source import registration_of
from holdfast.node.log import serve
from holdfast.node.trust.trust import Trust
from holdfast.protocol.log_wire import Batch
from holdfast.rules import limits
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadPeerId,
    HoldfastError,
    OverLimit,
    UnknownKey,
    UnknownLink,
    UnknownMesh,
    UnknownZone,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.lamport import ceiling
from holdfast.rules.rows import LinkRow, ZoneKey, ZoneRow
from holdfast.service.caller import Caller
from holdfast.storage.files.home import HomePaths
from support.envelopes import MESH, fact_append, file_share, state_set
from support.far_node import FarNode
from support.nodes import Nodes, team
from support.source import START_MS

URL = "https://bob:7411"


class Here:
    """A node that trusts bob."""

    def __init__(self, node: Node) -> None:
        self.node, self.engine = node, node._engine
        self.far = FarNode()
        self.links = Links(self.engine, Trust(self.engine, HomePaths(node.home)), self.far.reach)
        self.trust("bob")

    def trust(self, name: str, *, blocked: bool = False, keys: int = 1) -> None:
        made = tuple(
            ZoneKey(key=name.encode().ljust(31, b"-") + bytes([n]), added_at=1) for n in range(keys)
        )
        row = ZoneRow(name=name, keys=made, added_at=1, blocked_at=5 if blocked else None)
        self.engine.write("test", lambda tx: tx.zone_put(row))

    def add(self, name: str = "bob", url: str = URL, zone: str = "bob", **settings: Any) -> Any:
        return self.links.add(name, url, zone, **{"meshes": [MESH], **settings})

    def row(self, name: str = "bob") -> LinkRow:
        found = self.engine.read("test", lambda tx: tx.link_get(name))
        assert found is not None
        return found

    def take(self, *raws: bytes, start: int = 1) -> None:
        end = start + len(raws) - 1
        offsets = list(range(start, end + 1))
        receive.receive_batch(self.engine, "bob", Batch(1, 1, end, start, end, offsets, list(raws)))


@pytest.fixture
def here(nodes: Nodes) -> Here:
    return Here(nodes.open("ana"))


# --- adding ---------------------------------------------------------------------------------------


def test_Z6_a_link_is_stored_with_all_that_was_said_of_it(here: Here) -> None:
    view = here.add(
        "b.2", "https://BOB:7411/", subjects=["x", "a"], classes=["facts"], carries=["own", "cy"]
    )
    assert (view.name, view.zone, view.url) == ("b.2", "bob", "https://bob:7411")
    assert (view.meshes, view.subjects, view.classes) == ((MESH,), ("a", "x"), ("facts",))
    assert set(view.carries) == {"own", "cy"}
    assert (view.paused, view.epoch, view.cursor, view.quarantined) == (False, 0, 0, 0)
    assert view.added_at == START_MS
    assert here.links.get("b.2") == view
    assert here.links.list() == [view]


def test_Z8_a_link_takes_only_what_its_zone_wrote_unless_told_otherwise(here: Here) -> None:
    here.add()
    assert here.row().filter.origins == ("bob",)
    here.add("any", carries=["any"])
    assert here.row("any").filter.origins == ()


def test_Z8_a_zone_that_is_not_trusted_is_not_pulled_from(here: Here) -> None:
    with pytest.raises(UnknownZone) as unknown:
        here.add(zone="eve")
    assert "peer trust CARD" in unknown.value.hint
    here.trust("cyn", blocked=True)
    with pytest.raises(ZoneNotTrusted, match="blocked"):
        here.add(zone="cyn")
    here.trust("dave", keys=0)
    with pytest.raises(ZoneNotTrusted, match="no key"):
        here.add(zone="dave")
    assert here.links.list() == []


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (BadInput, {"name": "Bob"}),
        (BadInput, {"name": "a/b"}),
        (BadInput, {"url": "http://bob:7411"}),
        (BadInput, {"url": "https://bob"}),
        (BadInput, {"zone": "ana"}),
        (BadInput, {"meshes": []}),
        (BadInput, {"meshes": ["No"]}),
        (UnknownMesh, {"meshes": [MESH, "other"]}),
        (BadInput, {"classes": ["nonsense"]}),
        (BadInput, {"subjects": [""]}),
        (BadPeerId, {"carries": [" x"]}),
        (BadInput, {"carries": ["any", "x"]}),
        (OverLimit, {"subjects": [f"s{n}" for n in range(65)]}),
    ],
)
def test_Z6_what_cannot_work_is_refused(
    here: Here, error: type[HoldfastError], settings: dict[str, Any]
) -> None:
    with pytest.raises(error):
        here.add(**settings)
    assert here.links.list() == []


def test_Z6_a_name_is_used_once(here: Here) -> None:
    first = here.add()
    with pytest.raises(AlreadyExists):
        here.add(carries=["any"])
    assert here.links.list() == [first]


def test_Z6_a_node_has_only_so_many_links(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.node.links.registry.LINKS_MAX", 2)
    here.add("a")
    here.add("b")
    with pytest.raises(OverLimit):
        here.add("c")
    assert limits.LINKS_MAX > 2


def test_Z6_the_longest_names_of_all_make_a_reader_that_a_source_takes(nodes: Nodes) -> None:
    here = Here(nodes.open("a" * limits.PEER_ID_BYTES_MAX))
    here.add("b" * limits.LINK_NAME_CHARS_MAX)
    us = here.node.peer
    asked = registration_of(here.row("b" * limits.LINK_NAME_CHARS_MAX), us)
    source = nodes.open("bob")
    assert serve.register(source._engine, Caller("zone", us), asked).name == asked.consumer


def test_Z6_a_link_that_is_not_there_is_told_by_name(here: Here) -> None:
    for ask in (here.links.get, here.links.pause, here.links.resume, here.links.remove):
        with pytest.raises(UnknownLink, match="'no'"):
            ask("no")
    with pytest.raises(UnknownLink):
        here.links.quarantine("no")
    with pytest.raises(UnknownLink):
        here.links.drop_all_quarantined("no")


# --- changing -------------------------------------------------------------------------------------


def test_Z6_pausing_keeps_the_place(here: Here) -> None:
    here.add()
    here.take(state_set("a", 1))
    assert here.links.pause("bob").paused
    assert here.row().cursor == 1
    view = here.links.resume("bob")
    assert (view.paused, view.cursor) == (False, 1)
    assert here.far.asked == []


def test_Z5_skipping_asks_the_source_what_it_still_holds(here: Here) -> None:
    here.add(paused=True)
    here.take(state_set("a", 1))
    here.far.write(*[state_set("a", n, lamport=n) for n in range(1, 9)])
    assert here.links.missing("bob") is None, "the source has no reader of this link yet"
    assert here.links.resume("bob", skip_missing=True).cursor == 1
    assert here.links.missing("bob") == 0
    # Its reader there was retired: that is how entries come to be missing.
    here.far.filters.clear()
    here.far.truncate(5)
    assert here.links.missing("bob") is None
    assert (here.row().cursor, here.far.filters) == (1, {}), "to ask changes nothing on both sides"
    view = here.links.resume("bob", skip_missing=True)
    assert (view.cursor, view.paused) == (4, False)
    here.far.truncate(7)
    assert here.links.missing("bob") == 2
    here.far.truncate(5)
    # Never backwards.
    assert here.links.resume("bob", skip_missing=True).cursor == 4


def test_Z5_nothing_is_skipped_when_the_source_does_not_answer(here: Here) -> None:
    here.add(paused=True)
    here.far.will("register", Unreachable("away"))
    with pytest.raises(Unreachable):
        here.links.resume("bob", skip_missing=True)
    assert here.row().paused
    assert here.far.lines[-1].closed


def test_Z6_removing_tells_the_source(here: Here) -> None:
    here.add()
    here.far.filters["zone:ana/bob"] = here.row().filter
    here.far.frontiers["zone:ana/bob"] = 0
    removed = here.links.remove("bob")
    assert (removed.told, removed.consumer) == (True, "zone:ana/bob")
    assert here.far.filters == {}
    assert here.links.list() == []
    assert here.far.lines[-1].closed


def test_Z6_a_source_that_knows_nothing_of_it_is_as_good_as_told(here: Here) -> None:
    here.add()
    assert here.links.remove("bob").told


def test_Z6_a_link_is_removed_even_if_the_source_cannot_be_told(here: Here) -> None:
    here.add()
    here.take(state_set("a", 1))
    here.far.will("retire", Unreachable("nobody there"))
    removed = here.links.remove("bob")
    assert (removed.told, removed.why_not) == (False, "nobody there")
    assert here.links.list() == []
    assert team(here.node).state.get("a") == 1


# --- quarantine -----------------------------------------------------------------------------------


def test_Z7_what_was_refused_can_be_tried_again(here: Here) -> None:
    here.engine.write("test", lambda tx: tx.forget_below(MESH, 50))
    here.add()
    here.take(state_set("old", 1, lamport=3), b"\xc1", fact_append("s", "is", 1, lamport=4))
    assert here.links.get("bob").quarantined == 2
    assert [row.code for row in here.links.quarantine("bob")] == ["too_old", "bad_envelope"]
    again = here.links.retry_quarantined("bob")
    assert (again.passed, again.refused) == (0, 2)
    # Somebody brings the row by another way: what was too old meets a newer one, and passes.
    here.node.apply([state_set("old", 2, lamport=60, origin="bob")])
    again = here.links.retry_quarantined("bob")
    assert (again.passed, again.refused) == (1, 1)
    assert [row.code for row in here.links.quarantine("bob")] == ["bad_envelope"]
    assert team(here.node).state.get("old") == 2


def test_Z6_what_passes_later_came_through_the_zone_all_the_same(here: Here) -> None:
    here.engine.write("test", lambda tx: tx.forget_below(MESH, 50))
    here.add(carries=["any"])
    here.take(state_set("old", 1, lamport=3, origin="cyn"))
    here.node.apply([state_set("old", 2, lamport=60, origin="dave")])
    assert here.links.retry_quarantined("bob").passed == 1

    from holdfast.rules.filters import Filter

    def sent_to_bob(tx: Any) -> list[int]:
        page = tx.log_page(1, 99, 99, 1 << 20, Filter(beyond="bob"))
        return list(page.offsets)

    # dave's came from elsewhere; cyn's came from bob, who is not sent it back.
    assert here.engine.read("test", sent_to_bob) == [1]


def test_Z7_quarantined_envelopes_are_paged_and_tried_in_chunks(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.add()
    here.take(*[b"\xc1" + bytes([n]) for n in range(limits.CHUNK_ROWS + 5)])
    first = here.links.quarantine("bob")
    rest = here.links.quarantine("bob", first[-1].number)
    assert (len(first), len(rest)) == (limits.CHUNK_ROWS, 5)
    again = here.links.retry_quarantined("bob")
    assert (again.passed, again.refused) == (0, limits.CHUNK_ROWS + 5)
    assert here.links.drop_all_quarantined("bob") == limits.CHUNK_ROWS + 5
    assert here.links.get("bob").quarantined == 0


def test_Z2_what_is_tried_again_gets_its_objects_first(here: Here) -> None:
    """They were brought once, but nothing named them and a sweep took them."""
    top = ceiling(0)
    ahead = top + 100
    content = b"x" * 70_000
    here.add()
    here.take(
        file_share("a", content, lamport=ahead), file_share("b", b"y" * 70_000, lamport=ahead)
    )
    assert [row.code for row in here.links.quarantine("bob")] == ["bad_stamp"] * 2
    here.node.apply([fact_append("s", "is", 1, lamport=top)])  # now they are not so far ahead
    here.far.will("object_size", Unreachable("nobody is there"))
    with pytest.raises(Unreachable):
        here.links.retry_quarantined("bob")
    assert here.links.get("bob").quarantined == 2
    sha = here.far.share(content)
    assert here.links.retry_quarantined("bob").passed == 2
    assert here.engine.blobs.read(sha) == content
    assert all(line.closed for line in here.far.lines)


def test_Z7_one_of_them_can_be_given_up(here: Here) -> None:
    here.add()
    here.take(b"\xc1 1", b"\xc1 2")
    first, second = here.links.quarantine("bob")
    here.links.drop_quarantined(first.number)
    assert here.links.quarantine("bob") == [second]
    with pytest.raises(UnknownKey):
        here.links.drop_quarantined(first.number)
