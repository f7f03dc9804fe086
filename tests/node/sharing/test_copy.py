"""A mesh whose name is taken at the broker is published as a copy, under a name that is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.node.library.node import Mesh, Node
from holdfast.node.snapshots import mesh_export
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.copied import copied_id, other_names
from holdfast.rules.errors import AlreadyExists, Conflict, TooOld
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import FREE_NAMES_MAX, MESH_SLUG_CHARS_MAX
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.vectors import Model
from support.broker_up import BrokerUp, broker_at
from support.snapshot import snapshot

BIG = b"large content " * 6000
MODEL = Model(provider="p", name="m", dim=2)


class Died(Exception):
    """The process is gone."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUp]:
    with broker_at(tmp_path_factory.mktemp("hub") / "store") as up:
        yield up


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    open_now: list[Node] = []

    def home(peer: str) -> Node:
        node = holdfast.open(tmp_path / peer, peer=peer, create=True, sync="normal")
        open_now.append(node)
        return node

    yield home
    for node in open_now:
        node.close()


def fill(mesh: Mesh) -> None:
    """Every family, with what was replaced, deleted, claimed and ended."""
    for value in (1, 2):
        mesh.state.set("k", value)
    mesh.state.set("gone", 1)
    mesh.state.delete("gone")
    mesh.memory.set("m", {"a": 1}, tags=["t"])
    mesh.memory.set("forgotten", 1)
    mesh.memory.forget("forgotten")
    mesh.vectors.store("v", [1.0, 2.0], model=MODEL, content="text")
    mesh.files.share("a.txt", b"small")
    mesh.files.share("b.bin", BIG)
    mesh.files.share("c.bin", b"c")
    mesh.files.delete("c.bin")
    for name in ("open", "mine", "done"):
        task = mesh.tasks.create(name).task
        if name != "open":
            mesh.tasks.claim(task)
        if name == "done":
            mesh.tasks.complete(task)
    mesh.facts.append("s", "p", 1)
    for value in range(3):
        mesh.audit.append("runs", {"value": value})


def brought(node: Node, slug: str, other: Node) -> None:
    """What another peer wrote in its own home of that mesh."""
    theirs = other.create_mesh(slug)
    theirs.memory.set("of another", 1)
    theirs.state.set("theirs", 1)
    task = theirs.tasks.create("theirs").task
    theirs.tasks.claim(task)
    theirs.audit.append("runs", {"of": "another"})
    for applied in node.apply(entry.raw for entry in other.log.range()):
        assert applied.error is None


def tables(node: Node, slug: str) -> dict[str, Any]:
    """Without how often blobs are named: that counts over all meshes of the home."""
    found = snapshot(node._engine.store)[slug]
    found["task"] = sorted(found["task"], key=lambda row: row["title"])  # ids come in any order
    return {name: rows for name, rows in found.items() if name != "blobs"}


def as_copied(value: Any, old: str, new: str) -> Any:
    """What a snapshot of `old` is in the copy: other ids, and everything else alike."""
    if isinstance(value, dict):
        found = {name: as_copied(part, old, new) for name, part in value.items()}
        return {
            as_copied(name, old, new) if len(name) == 36 else name: part
            for name, part in found.items()
        }
    if isinstance(value, list | tuple):
        return [as_copied(part, old, new) for part in value]
    if isinstance(value, msgspec.Struct):
        return as_copied(msgspec.structs.asdict(value), old, new)
    if isinstance(value, bytes) and len(value) == 16:
        return copied_id(value, new)
    if isinstance(value, str) and len(value) == 36 and value.count("-") == 4:
        return id_text(copied_id(parse_id(value), new))
    return new if value == old else value


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return plain(msgspec.structs.asdict(value)) if isinstance(value, msgspec.Struct) else value


def check(node: Node, other: Node, old: str, new: str) -> None:
    want = as_copied(tables(node, old), old, new)
    assert plain(tables(node, new)) == want
    assert plain(tables(other, new)) == want


def audit_of(node: Node, slug: str) -> list[tuple[str, int, Any]]:
    return [(one.origin, one.seq, one.payload) for one in node.mesh(slug).audit.list("runs")]


@pytest.mark.parametrize("truncated", [False, True])
def test_S14_a_copy_has_the_stamps_origins_and_deletions_of_a_mesh_whose_name_is_taken(
    hub: BrokerUp, homes: Callable[[str], Node], *, truncated: bool
) -> None:
    slug = f"team{truncated:d}"
    cy, ana, bo, dee = map(homes, ("cy", "ana", "bo", "dee"))
    cy.create_mesh(slug)
    cy.sharing.publish(slug, broker=hub.url)
    cy.create_mesh(f"{slug}-2")
    cy.sharing.publish(f"{slug}-2", broker=hub.url)
    mesh = ana.create_mesh(slug)
    fill(mesh)
    brought(ana, slug, dee)
    if truncated:
        ana.sweep(Ttl(log_ms=0))
    before = tables(ana, slug)
    with pytest.raises(AlreadyExists) as refused:
        ana.sharing.publish(slug, broker=hub.url)
    new = f"{slug}-3"
    assert refused.value.free[0] == new, "the second one is taken too"
    assert f"mesh publish {slug} --as {new} --broker {hub.url}" in refused.value.hint
    done = ana.sharing.publish(slug, broker=hub.url, as_name=new)
    assert (done.mesh, ana.mesh(slug).info().kind) == (new, "personal")
    assert done.invite is not None
    assert tables(ana, slug) == before, "the original stays as it was"
    if done.waiting:
        sync(ana, new)
    bo.sharing.join(done.invite)
    sync(bo, new)
    check(ana, bo, slug, new)
    events = audit_of(ana, slug)
    assert len(events) == 4
    assert audit_of(bo, new) == events == audit_of(ana, new)
    # Life goes on in the copy, and its clock is past everything that was copied.
    receipt = ana.mesh(new).state.set("k", 3)
    assert receipt.lamport > mesh.info().lamport
    ana.mesh(new).audit.append("runs", {"value": 3})
    sync(ana, new)
    sync(bo, new)
    assert bo.mesh(new).state.get("k") == 3
    assert audit_of(bo, new) == audit_of(ana, new)
    with ana._engine.store.read() as tx:
        assert tx.job_get(f"copy:{new}") is None
    # The same command again says that it is done.
    assert ana.sharing.publish(slug, broker=hub.url, as_name=new).way == "before"


def sync(node: Node, mesh: str) -> None:
    from holdfast.node.settings import Settings
    from holdfast.node.sync.run_once import wait_until_synced
    from holdfast.node.trust.trust import Trust
    from holdfast.storage.files.home import HomePaths

    paths = HomePaths(node.home)
    trust = Trust(node._engine, paths)
    done = wait_until_synced(
        node._engine, trust, paths, mesh, patience_ms=30_000, outbox=Settings().outbox
    )
    assert done.waiting == 0
    with node._engine.store.read() as tx:
        assert not tx.outbox_failing(f"broker:{mesh}", None)


def test_S14_a_copy_that_was_cut_off_anywhere_goes_on(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_export, "CHUNK_ROWS", 4)
    homes("cy").create_mesh("cut")
    ana, bo = homes("ana"), homes("bo")
    bo.create_mesh("cut")
    bo.sharing.publish("cut", broker=hub.url)
    mesh = ana.create_mesh("cut")
    fill(mesh)
    write, steps = ana._engine.write, 0

    def dying(name: str, work: Any, **more: Any) -> Any:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise Died
        return write(name, work, **more)

    monkeypatch.setattr(type(ana._engine), "write", lambda self, *a, **k: dying(*a, **k))
    tries, last = 0, 0
    done = None
    while done is None:
        tries, last = tries + 1, last + 1
        steps = last
        try:
            done = ana.sharing.publish("cut", broker=hub.url, as_name="cut-2")
        except Died:
            continue
    assert tries > 4, "it was cut off at many places"
    steps = 1_000_000
    assert plain(tables(ana, "cut-2")) == as_copied(tables(ana, "cut"), "cut", "cut-2")


def test_S14_what_was_forgotten_does_not_come_back_by_a_copy(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bo = homes("ana"), homes("bo")
    bo.create_mesh("past")
    bo.sharing.publish("past", broker=hub.url)
    mesh = ana.create_mesh("past")
    mesh.state.set("gone", 1)
    (late,) = [entry.raw for entry in ana.log.range()]
    mesh.state.delete("gone")
    mesh.state.set("stays", 1)
    ana.sweep(Ttl(log_ms=0, tombstone_ms=0))
    assert ana.mesh("past").info().forgotten_lamport
    done = ana.sharing.publish("past", broker=hub.url, as_name="past-2")
    assert done.way == "snapshot"
    from holdfast.rules.copied import copied

    (applied,) = ana.apply([copied(late, "past-2")])
    assert isinstance(applied.error, TooOld)


def test_S14_what_cannot_be_copied_is_said_before_the_name_is_taken(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bo = homes("ana"), homes("bo")
    ana.create_mesh("voted")
    ana.create_mesh("here").state.set("k", 1)
    with pytest.raises(AlreadyExists, match="another mesh"):
        ana.sharing.publish("voted", broker=hub.url, as_name="here")
    row = QuorumRow(mesh="voted", engine="embedded", incarnation=1, tag=b"t" * 16)
    ana._engine.write("test", lambda tx: tx.quorum_put(row))
    with pytest.raises(Conflict, match="voters decide"):
        ana.sharing.publish("voted", broker=hub.url, as_name="voted-2")
    bo.create_mesh("voted-2")
    assert bo.sharing.publish("voted-2", broker=hub.url).invite, "the name is free"
    bo.create_mesh("mine")
    bo.sharing.publish("mine", broker=hub.url, as_name="hers")
    with pytest.raises(AlreadyExists) as refused:
        ana.sharing.publish("here", broker=hub.url, as_name="hers")
    assert "mesh publish here --as hers-2" in refused.value.hint
    assert "hers" not in {row.slug for row in ana.meshes()}


def test_S14_names_that_are_offered_fit_and_are_not_many() -> None:
    names = list(other_names("m" * MESH_SLUG_CHARS_MAX))
    assert len(set(names)) == len(names) >= FREE_NAMES_MAX
    assert {len(name) for name in names} == {MESH_SLUG_CHARS_MAX}
    assert names[0].endswith("m-2")
