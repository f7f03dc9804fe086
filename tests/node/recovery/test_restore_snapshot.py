"""A home from a snapshot: the same tables, whatever happens on the way, and links go on from it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.daemon.daemon import Daemon
from holdfast.node.library.node import Node, open_node
from holdfast.node.links.registry import Links
from holdfast.node.links.status import LinkStatus
from holdfast.node.recovery.restore_snapshot import JOB, STAGING, restore_snapshot
from holdfast.node.settings import Settings
from holdfast.node.snapshots.manifest import (
    NAME,
    MeshPoint,
    Signer,
    SnapshotManifest,
    check_signer,
    read_manifest,
    signer_of,
)
from holdfast.node.snapshots.places import place_of
from holdfast.node.trust.trust import Trust
from holdfast.rules import limits
from holdfast.rules.envelope import decode
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadPath,
    BadPeerId,
    HoldfastError,
    StoreBusy,
    StoreCorrupt,
    TooOld,
    UnsupportedProtocol,
    ZoneNotTrusted,
)
from holdfast.rules.keys import text_of
from holdfast.rules.rows import Entry
from holdfast.storage.files.home import HomePaths
from support.daemon import PATIENCE_S, UpInThread, running
from support.envelopes import fact_append, state_set
from support.nodes import Nodes, deliver
from support.plain_snapshot import meet, plain_snapshot, table_digests, wander, write_part
from support.seeds import seeds
from support.source import HandClock

LARGE = bytes(range(256)) * 512


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes("sqlite", tmp_path / "homes", HandClock())
    (tmp_path / "homes").mkdir()
    yield made
    made.close()


def _logs(*nodes: Node) -> dict[str, list[Entry]]:
    return {node.peer: list(node.log.range()) for node in nodes}


def _restored(folder: Path, snapshot: Path, **settings: Any) -> Node:
    restore_snapshot(folder, snapshot, "new", sync="normal", **settings)
    return open_node(folder, sync="normal")


def _filled(homes: Nodes) -> Node:
    """More rows than one chunk holds."""
    node = homes.open("ana")
    mesh = node.mesh("team")
    for number in range(300):
        mesh.state.set(f"k{number}", number)
        mesh.facts.append(f"s{number}", "is", number)
    return node


# --- the same tables -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(4))
def test_P6_a_home_from_a_snapshot_has_the_tables_of_the_others(
    homes: Nodes, tmp_path: Path, seed: int
) -> None:
    nodes = [homes.open(name) for name in ("ana", "bob", "cai")]
    wander(nodes, seed, 150)
    meet(nodes)
    plain_snapshot(tmp_path / "snap", _logs(*nodes))
    with _restored(tmp_path / "home", tmp_path / "snap") as node:
        assert table_digests(node) == table_digests(nodes[0])
        assert node.mesh("team").clock().lamport >= max(
            entry.lamport for entry in nodes[0].log.range()
        )
        lost = {row.family for row in node.conflicts()}
        assert lost <= {"task"}, "but for turns on tasks, a snapshot holds no losers"
        assert node._engine.read("test", lambda tx: tx.job_get(JOB)) is None
        # Nothing is minted: what it holds are the bytes that everybody has.
        known = {entry.id: entry.raw for entry in nodes[0].log.range()}
        assert all(known[entry.id] == entry.raw for entry in node.log.range())
        # The rest of history does no harm, in whatever order it comes.
        deliver(nodes[1], node)
        assert table_digests(node) == table_digests(nodes[0])


def test_P6_a_snapshot_may_leave_facts_out(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana), facts=False)
    with _restored(tmp_path / "home", tmp_path / "snap") as node:
        assert table_digests(node) == table_digests(ana)
        assert not any(entry.op == "fact.append" for entry in node.log.range())


def test_P6_what_is_written_after_a_restore_wins_everywhere(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    with _restored(tmp_path / "home", tmp_path / "snap") as node:
        node.mesh("team").state.set("k1", "newer")
        deliver(node, ana)
    assert ana.mesh("team").state.get("k1") == "newer"


def test_P6_deletions_that_were_left_out_are_not_undone(homes: Nodes, tmp_path: Path) -> None:
    ana = homes.open("ana")
    ana.mesh("team").state.set("gone", 1)
    stale = next(iter(ana.log.range()))
    ana.mesh("team").state.delete("gone")
    ana.mesh("team").state.set("kept", 1)
    kept = list(ana.log.range(start=3))
    points = {"team": MeshPoint(clock=3, forgotten=2)}
    plain_snapshot(tmp_path / "snap", {"ana": kept}, meshes=points)
    with _restored(tmp_path / "home", tmp_path / "snap") as node:
        (result,) = node.apply([stale.raw])
        assert isinstance(result.error, TooOld)
        assert node.mesh("team").state.get("kept") == 1


def test_P6_content_that_is_not_in_a_snapshot_is_named(homes: Nodes, tmp_path: Path) -> None:
    ana = homes.open("ana")
    ana.mesh("team").files.share("large.bin", LARGE)
    ana.mesh("team").files.share("small.txt", b"here")
    plain_snapshot(tmp_path / "snap", _logs(ana))
    report = restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", sync="normal")
    with ana._engine.store.read() as reader:
        (blob,) = reader.blob_scan("", 10)
    assert (report.missing, report.missing_objects) == (1, (blob.sha256,))


def test_P6_an_envelope_that_is_refused_is_told(homes: Nodes, tmp_path: Path) -> None:
    ana = homes.open("ana")
    ana.mesh("team").state.set("a", 1)
    leap = state_set("b", 1, lamport=limits.LAMPORT_LEAP_MAX + 2**40)
    entry = Entry(2, decode(leap).id, "team", "state.set", "b", "bob", 1, 1, leap)
    points = {"team": MeshPoint(clock=1)}
    plain_snapshot(tmp_path / "snap", {"ana": [*ana.log.range(), entry]}, meshes=points)
    report = restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", sync="normal")
    assert report.counts == {"applied": 1, "refused": 1}
    assert [refused.code for refused in report.refused] == ["bad_stamp"]


# --- where it goes -------------------------------------------------------------------------------


def test_P6_a_home_that_is_there_gets_the_meshes_it_lacks(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    cai = homes.open("cai", "own")
    cai.mesh("own").state.set("mine", 1)
    report = restore_snapshot(cai.home, tmp_path / "snap")
    assert (report.peer, report.meshes) == ("cai", ("team",))
    assert table_digests(cai) == table_digests(ana)
    assert cai.mesh("own").state.get("mine") == 1
    again = restore_snapshot(cai.home, tmp_path / "snap")
    assert again.resumed_after == 0, "what is done is not done again"
    assert table_digests(cai) == table_digests(ana)


def test_P6_a_mesh_that_is_there_is_left_alone(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    cai = homes.open("cai", "team")
    with pytest.raises(AlreadyExists, match="mesh team already"):
        restore_snapshot(cai.home, tmp_path / "snap")
    assert cai.log.head().offset == 0


def test_P6_a_new_home_needs_a_name_and_an_empty_place(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    with pytest.raises(BadPeerId):
        restore_snapshot(tmp_path / "home", tmp_path / "snap")
    with pytest.raises(AlreadyExists, match="not empty"):
        restore_snapshot(tmp_path / "snap", tmp_path / "snap", "new")
    (tmp_path / "empty").mkdir()
    restore_snapshot(tmp_path / "empty", tmp_path / "snap", "new", sync="normal")
    assert HomePaths(tmp_path / "empty").database.exists()


def test_P6_a_name_that_has_written_is_taken_over_only_on_purpose(
    homes: Nodes, tmp_path: Path
) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    with pytest.raises(AlreadyExists, match="'ana' wrote already"):
        restore_snapshot(tmp_path / "home", tmp_path / "snap", "ana")
    assert not (tmp_path / "home").exists()
    restore_snapshot(tmp_path / "home", tmp_path / "snap", "ana", take_over=True, sync="normal")
    # The old home wrote on meanwhile, and nobody knew.
    ana.mesh("team").state.set("k1", "late")
    with open_node(tmp_path / "home", sync="normal") as node:
        assert node.log.head().epoch == 2
        node.mesh("team").state.set("k1", "new")
        mine = list(node.log.range())[-1]
        assert mine.lamport > max(entry.lamport for entry in ana.log.range())
        deliver(ana, node)
        assert node.mesh("team").state.get("k1") == "new"


# --- interrupted ---------------------------------------------------------------------------------


def _dying(at: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= at:
            os._exit(9)

    return progress


@pytest.mark.parametrize("new", [True, False], ids=["a new home", "a home that is there"])
def test_P6_a_restore_that_was_killed_goes_on_where_it_stopped(
    homes: Nodes, tmp_path: Path, new: bool
) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana), rows_per_part=120)
    home = tmp_path / "home"
    if not new:
        open_node(home, peer="new", create=True, sync="normal").close()
    seen = []
    for at in (1, 121, 361, 481):
        pid = os.fork()
        if pid == 0:
            try:
                restore_snapshot(home, tmp_path / "snap", "new", progress=_dying(at), sync="normal")
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        if new:
            assert not home.exists(), "what is not complete does not bear the name of a home"
        else:
            with open_node(home, sync="normal") as node:
                job = node._engine.read("test", lambda tx: tx.job_get(JOB))
                assert job is not None
                seen.append(job.cursor["rows"])
    report = restore_snapshot(home, tmp_path / "snap", "new", sync="normal")
    assert report.resumed_after == report.rows == 600
    assert seen == sorted(set(seen)), "each run got further"
    with open_node(home, sync="normal") as node:
        assert table_digests(node) == table_digests(ana)
        assert node.log.head().offset == 600
    assert not list(tmp_path.glob(f"{STAGING}*"))


def test_P6_two_snapshots_never_mix(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "one", _logs(ana))
    ana.mesh("team").state.set("k1", "later")
    plain_snapshot(tmp_path / "two", _logs(ana))
    cai = homes.open("cai", "own")
    for home in (cai.home, tmp_path / "home"):
        with pytest.raises(InterruptedError):
            restore_snapshot(home, tmp_path / "one", "cai", progress=_stop, sync="normal")
    with pytest.raises(AlreadyExists, match="half restored from another snapshot"):
        restore_snapshot(cai.home, tmp_path / "two")
    restore_snapshot(cai.home, tmp_path / "one")
    assert cai.mesh("team").state.get("k1") == 1
    report = restore_snapshot(tmp_path / "home", tmp_path / "two", "cai", sync="normal")
    assert (report.resumed_after, len(report.left)) == (0, 1)
    with open_node(tmp_path / "home", sync="normal") as node:
        assert table_digests(node) == table_digests(ana)


def _stop(done: int, total: int) -> None:
    raise InterruptedError


def test_P6_two_restores_of_one_snapshot_do_not_run_at_once(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    cai = homes.open("cai", "own")
    nested: list[HoldfastError] = []

    def other(done: int, total: int) -> None:
        if not nested:
            nested.append(StoreBusy("begun"))
            restore_snapshot(cai.home, tmp_path / "snap")

    with pytest.raises(StoreBusy, match="another process"):
        restore_snapshot(cai.home, tmp_path / "snap", progress=other)
    assert table_digests(cai) == table_digests(ana)


# --- damage and signatures -----------------------------------------------------------------------


def _refuses(tmp_path: Path, kind: type[HoldfastError], words: str, **settings: Any) -> None:
    with pytest.raises(kind, match=words):
        restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", **settings)
    assert not (tmp_path / "home").exists()
    assert not list(tmp_path.glob(f"{STAGING}*")), "nothing was begun"


def test_P6_damage_is_found_before_anything_is_written(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    manifest = plain_snapshot(tmp_path / "snap", _logs(ana))
    last = tmp_path / "snap" / manifest.parts[-1].path
    whole = last.read_bytes()
    last.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    _refuses(tmp_path, StoreCorrupt, "not what the manifest says")
    last.write_bytes(whole[:-9])
    _refuses(tmp_path, StoreCorrupt, "not what the manifest says")
    last.unlink()
    _refuses(tmp_path, StoreCorrupt, "is missing")
    last.write_bytes(whole)
    said = (tmp_path / "snap" / NAME).read_bytes()
    for broken in (said[: len(said) // 2], b"", b"[]", said.replace(b'"rows"', b'"bows"')):
        (tmp_path / "snap" / NAME).write_bytes(broken)
        _refuses(tmp_path, StoreCorrupt, "cannot be read")
    (tmp_path / "snap" / NAME).write_bytes(said.replace(b'"clock": 600', b'"clock": 601'))
    _refuses(tmp_path, StoreCorrupt, "changed or is damaged")
    (tmp_path / "snap" / NAME).write_bytes(said.replace(b'"version": 1', b'"version": 3'))
    _refuses(tmp_path, UnsupportedProtocol, "format 3")
    (tmp_path / "snap" / NAME).unlink()
    _refuses(tmp_path, BadPath, "not a snapshot")


def test_P6_a_manifest_that_lies_about_its_parts_is_found_out(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    manifest = plain_snapshot(tmp_path / "snap", _logs(ana))
    first, *others = manifest.parts
    for parts, rows, words in (
        ((msgspec.structs.replace(first, path="../../etc/passwd"), *others), 600, "contradicts"),
        ((first, first, *others), 650, "contradicts"),
        (manifest.parts, 601, "contradicts"),
    ):
        _rewrite(tmp_path, msgspec.structs.replace(manifest, parts=parts, rows=rows))
        _refuses(tmp_path, StoreCorrupt, words)
    # A part that was replaced by another one, and a manifest that was made to fit.
    other = write_part(
        tmp_path / "snap",
        "other.gz",
        [fact_append(f"s{n}", "is", n, lamport=n) for n in range(1, 51)],
    )
    _rewrite(tmp_path, msgspec.structs.replace(manifest, parts=(other, *others)))
    with pytest.raises(StoreCorrupt, match="not the 600"):
        restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", sync="normal")
    assert not (tmp_path / "home").exists()


def _rewrite(tmp_path: Path, manifest: SnapshotManifest) -> None:
    (tmp_path / "snap" / NAME).write_bytes(manifest.sealed().encode())


def test_P6_a_signature_is_checked_against_a_key_that_is_known(
    homes: Nodes, tmp_path: Path
) -> None:
    ana = _filled(homes)
    signer = signer_of(ana.home)
    plain_snapshot(tmp_path / "snap", _logs(ana), signer=signer)
    card = Trust(ana._engine, HomePaths(ana.home)).card()
    assert signer.card == card
    stranger = Signer("ana", b"s" * 32)
    _refuses(tmp_path, ZoneNotTrusted, "another key", signed_by=stranger.card)
    with pytest.raises(BadInput):
        restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", signed_by="nonsense")
    report = restore_snapshot(
        tmp_path / "home", tmp_path / "snap", "new", signed_by=card, sync="normal"
    )
    assert (report.signed_by, report.checked) == (card, True)
    check_signer(read_manifest(tmp_path / "snap"), card.rpartition(":")[2])
    unasked = restore_snapshot(tmp_path / "other", tmp_path / "snap", "new", sync="normal")
    assert (unasked.signed_by, unasked.checked) == (card, False)


def test_P6_a_signature_that_does_not_fit_is_refused(homes: Nodes, tmp_path: Path) -> None:
    ana = _filled(homes)
    manifest = plain_snapshot(tmp_path / "snap", _logs(ana), signer=Signer("ana", b"s" * 32))
    forged = msgspec.structs.replace(manifest, signature=text_of(b"f" * 64))
    (tmp_path / "snap" / NAME).write_bytes(forged.encode())
    _refuses(tmp_path, StoreCorrupt, "signature")
    stripped = msgspec.structs.replace(manifest, signature="")
    (tmp_path / "snap" / NAME).write_bytes(stripped.encode())
    _refuses(tmp_path, StoreCorrupt, "signature")
    _rewrite(tmp_path, manifest)
    _refuses(tmp_path, ZoneNotTrusted, "not signed", signed_by=manifest.signer)


# --- links go on from it -------------------------------------------------------------------------


def test_P6_a_link_begins_where_all_its_meshes_are_covered(homes: Nodes, tmp_path: Path) -> None:
    ana = homes.open("ana", "team", "other")
    ana.mesh("team").state.set("a", 1)
    logs = _logs(ana)
    ana.mesh("other").state.set("b", 1)
    plain_snapshot(tmp_path / "snap", logs)
    with _restored(tmp_path / "home", tmp_path / "snap") as node:
        node.create_mesh("other")
        with node._engine.store.read() as tx:
            assert place_of(tx, "ana", ["team"]) == (1, 1)
            assert place_of(tx, "bob", ["team"]) == (0, 0)
            assert place_of(tx, "ana", ["team", "other"]) == (0, 0), "it would miss some of other"
        before = [*ana.log.range()]
        extra = {"ana": [entry for entry in before if entry.mesh == "other"]}
        plain_snapshot(tmp_path / "second", extra)
        cai = homes.open("cai", "own")
        for name in ("snap", "second"):
            restore_snapshot(cai.home, tmp_path / name)
        with cai._engine.store.read() as tx:
            assert place_of(tx, "ana", ["team", "other"]) == (1, 1), "the lower of the two"


class Watched:
    """Daemons, and a way to wait for what their links do."""

    def __init__(self, ending: ExitStack) -> None:
        self._ending = ending
        self._moved = threading.Condition()

    def up(self, home: Path) -> UpInThread:
        up = self._ending.enter_context(running(home, Settings(listen="127.0.0.1:0")))
        up.daemon.api.engine.store.on_commit(self._tell)
        link_manager = up.daemon.api.link_manager
        assert link_manager is not None
        told = link_manager._on_change
        assert told is not None

        def tell(status: LinkStatus) -> None:
            told(status)
            self._tell()

        link_manager._on_change = tell
        return up

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def until(self, so: Callable[[], Any]) -> None:
        with self._moved:
            assert self._moved.wait_for(so, PATIENCE_S), "it did not come to that"


@pytest.fixture
def watched() -> Iterator[Watched]:
    with ExitStack() as ending:
        yield Watched(ending)


def _link(up: UpInThread, to: UpInThread) -> Links:
    api, source = up.daemon.api, to.daemon.api
    source.trust.trust(api.trust.card(), reads=["team"])
    api.trust.trust(source.trust.card())
    links = Links(api.engine, api.trust)
    links.add("ana", to.tls, "ana", meshes=["team"], carries=["any"])
    assert api.link_manager is not None
    api.link_manager.refresh()
    return links


def _status(daemon: Daemon) -> LinkStatus:
    assert daemon.api.link_manager is not None
    return daemon.api.link_manager.status()[0]


@pytest.mark.parametrize("facts", [True, False], ids=["with facts", "without facts"])
def test_P6_a_link_goes_on_from_the_snapshot_and_brings_only_what_is_new(
    homes: Nodes, tmp_path: Path, watched: Watched, facts: bool
) -> None:
    ana = homes.open("ana")
    mesh = ana.mesh("team")
    for _ in range(20):  # nearly everything is superseded, what stands before the place too
        mesh.state.set("k", "old")
        mesh.facts.append("s", "is", 1)
    mesh.state.set("k", "newest")
    mesh.files.share("large.bin", LARGE)
    mesh.state.set("z", 1)
    if not facts:
        mesh.facts.append("s", "is", 1)
    logs = _logs(ana)
    # The last entry before the place is not in the snapshot: it is a fact, or was superseded.
    bob = homes.open("bob")
    deliver(ana, bob)
    bob.mesh("team").state.set("z", 2)
    plain_snapshot(tmp_path / "snap", {**logs, **_logs(bob)}, facts=facts)
    deliver(bob, ana)
    mesh.state.set("z", 3)
    mesh.facts.append("s", "is", 2)
    home = ana.home
    ana.close()
    restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", sync="normal")
    source, target = watched.up(home), watched.up(tmp_path / "home")
    links = _link(target, source)
    assert links.get("ana").cursor == len(logs["ana"])
    watched.until(lambda: _status(target.daemon).cursor == len(logs["ana"]) + 3)
    status = _status(target.daemon)
    assert (status.received, status.new, status.known) == (3, 2, 1)
    node = target.daemon.api.node
    assert node.mesh("team").state.get("z") == 3
    assert table_digests(node) == table_digests(source.daemon.api.node)
    # What the snapshot has no content of, a link can bring.
    pulled = links.bring_objects("ana")
    assert (pulled.objects, pulled.missing, pulled.bytes) == (1, 0, len(LARGE))
    with node.mesh("team").files.open("large.bin", peer="ana") as content:
        assert content.read() == LARGE
    assert links.bring_objects("ana").objects == 0


def test_P6_a_log_that_is_another_one_is_read_from_its_beginning(
    homes: Nodes, tmp_path: Path, watched: Watched
) -> None:
    ana = homes.open("ana")
    for number in range(5):
        ana.mesh("team").state.set("k", number)
    plain_snapshot(tmp_path / "snap", _logs(ana))
    restore_snapshot(tmp_path / "home", tmp_path / "snap", "new", sync="normal")
    other = homes.open("ana")  # the home was lost and made anew under the old name
    for number in range(6):
        other.mesh("team").state.set(f"other-{number}", number)
    home = other.home
    other.close()
    source, target = watched.up(home), watched.up(tmp_path / "home")
    _link(target, source)
    watched.until(lambda: _status(target.daemon).cursor == 6 and _status(target.daemon).new)
    assert _status(target.daemon).new == 6
    ana.close()
