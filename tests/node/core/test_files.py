"""Files and blobs through the library: content first, then the row, and counts that are right."""

from __future__ import annotations

import io
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.core.files import find_file
from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import BadPath, BadValue, BlobCorrupt, BlobMissing, UnknownFile
from holdfast.rules.limits import INLINE_BYTES_MAX
from holdfast.storage.files.blobs import FileBlobs, MemoryBlobs
from support import envelopes as e
from support.nodes import Nodes, blob_names, grow_old, store_of, team
from support.seeds import seeds
from support.source import HandClock
from support.stores import file_row

NOW = Ttl(blob_ms=0, orphan_ms=0)
BIG = bytes(range(256)) * 300
SHA = sha256(BIG).hexdigest()

GOOD_PATHS = [
    *("a", "a.txt", "a b", "a-b_c.d", "a/b", "a/b/c.tar.gz", "A/B", "0", "0/1", "...", "a..b"),
    *("..a", "a..", ".hidden", "a/.hidden", "(1)", "a+b", "a (copy).txt", "-", "_", "- -", "a/ b"),
    *("....", "a/...", "x" * 1024, "a/" * 511 + "ab", "C", "con", "a.", " a", "a "),
    *("é", "a/é", "名"),
]
BAD_PATHS = [
    *(
        "",
        "/",
        "/a",
        "//a",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/..",
        "a/../b",
        ".",
        "./a",
        "a/.",
        "a/./b",
    ),
    *(
        "a\0b",
        "\0",
        "a\\b",
        "\\",
        "..\\a",
        "C:\\a",
        "C:a",
        "a:b",
        "a*b",
        "a?b",
        'a"b',
        "a<b",
        "a|b",
    ),
    *(
        "a\nb",
        "a\n",
        "a\tb",
        "a\u202eb",
        "a~b",
        "~/a",
        "$HOME/a",
        "a;b",
        "a&b",
        "a'b",
    ),
    *(
        "a%2e%2e/b",
        "a#b",
        "a@b",
        "a,b",
        "a=b",
        "[a]",
        "{a}",
        "x" * 1025,
        "a\u2215b",
        "a\x7fb",
        "!a",
    ),
]


def refs(node: Node, sha: str = SHA) -> int:
    return node._engine.read("x", lambda tx: tx.blob_refs(sha))


def released(node: Node, sha: str = SHA) -> bool:
    row = node._engine.read("x", lambda tx: tx.blob_get(sha))
    return row is not None and row.released_at is not None


def age(node: Node, clock: HandClock) -> None:
    clock.advance(10)
    for sha in blob_names(node):
        grow_old(node, sha, clock.at_ms - 5)


# --- paths ----------------------------------------------------------------------------------------


def test_S9_fifty_paths_and_more_are_judged() -> None:
    assert len(GOOD_PATHS) + len(BAD_PATHS) > 80
    assert len(GOOD_PATHS) > 25


@pytest.mark.parametrize("path", GOOD_PATHS, ids=lambda path: repr(path)[:30])
def test_S9_a_plain_relative_path_names_a_file(node: Node, path: str) -> None:
    team(node).files.share(path, b"x")
    assert team(node).files.read(path) == b"x"
    assert [info.path for info in team(node).files.list()] == [path]
    team(node).files.delete(path)


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path)[:30])
def test_S9_any_other_path_is_refused_by_every_verb(node: Node, path: str) -> None:
    files = team(node).files
    for act in (
        lambda: files.share(path, b"x"),
        lambda: files.read(path),
        lambda: files.open(path),
        lambda: files.info(path),
        lambda: files.delete(path),
    ):
        with pytest.raises(BadPath):
            act()
    assert node.log.head().offset == 0
    assert blob_names(node) == set(), "refused before anything was written"
    if path:  # an envelope without an entity is refused before
        (applied,) = node.apply([e.file_share(path, b"x")] if "\0" not in path else [b""])
        assert applied.error is not None


# --- inline or blob -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "in_blob"),
    [
        (0, False),
        (1, False),
        (INLINE_BYTES_MAX - 1, False),
        (INLINE_BYTES_MAX, True),
        (INLINE_BYTES_MAX + 1, True),
    ],
)
@pytest.mark.parametrize("given", ["bytes", "bytearray", "memoryview", "path", "stream"])
def test_S9_content_below_64_kib_stays_in_its_row(
    node: Node, tmp_path: Path, size: int, in_blob: bool, given: str
) -> None:
    content = random.Random(size).randbytes(size)
    source: Any = {
        "bytes": content,
        "bytearray": bytearray(content),
        "memoryview": memoryview(content),
        "path": tmp_path / "source",
        "stream": io.BytesIO(content),
    }[given]
    (tmp_path / "source").write_bytes(content)
    team(node).files.share("f", source)
    row = find_file(node._engine, "team", "f", None)
    assert row.in_blob is in_blob
    assert (row.size, row.sha256) == (size, sha256(content).hexdigest())
    assert team(node).files.read("f") == content
    with team(node).files.open("f") as stream:
        assert stream.read() == content
    info = team(node).files.info("f")
    assert (info.size, info.here, info.peer) == (size, True, "ana")
    assert refs(node, row.sha256) == int(in_blob)


@pytest.mark.parametrize("wrong", ["text", 7, None, ["x"]])
def test_S9_what_is_no_content_is_refused(node: Node, wrong: object) -> None:
    with pytest.raises(BadValue):
        team(node).files.share("f", wrong)  # type: ignore[arg-type]


def test_S9_a_stream_is_shared_from_where_it_stands(node: Node) -> None:
    stream = io.BytesIO(b"header" + BIG)
    stream.seek(6)
    team(node).files.share("f", stream)
    assert team(node).files.read("f") == BIG


# --- reading verifies -----------------------------------------------------------------------------


def _damage(node: Node, sha: str, content: bytes) -> None:
    blobs = node._engine.blobs
    if isinstance(blobs, MemoryBlobs):
        blobs.contents[sha] = content
    else:
        assert isinstance(blobs, FileBlobs)
        (blobs.root / sha[:2] / sha).write_bytes(content)


def test_S9_damaged_content_is_never_handed_out(node: Node) -> None:
    files = team(node).files
    files.share("f", BIG)
    _damage(node, SHA, BIG[:-1] + b"!")
    for act in (files.read, files.open):
        with pytest.raises(BlobCorrupt):
            act("f")
    files.share("f", BIG)
    assert files.read("f") == BIG, "sharing it again heals it"


def test_S9_damaged_content_in_a_row_is_never_handed_out(node: Node) -> None:
    row = file_row("ana", "f", content=b"damaged", size=7, sha256=sha256(b"whole..").hexdigest())
    store_of(node).write(lambda tx: tx.file_put(row))
    for act in (team(node).files.read, team(node).files.open):
        with pytest.raises(BlobCorrupt):
            act("f")


def test_S9_a_row_whose_blob_is_missing_says_so(node: Node) -> None:
    files = team(node).files
    files.share("f", BIG)
    node._engine.blobs.unlink(SHA)
    for act in (files.read, files.open):
        with pytest.raises(BlobMissing):
            act("f")
    assert not files.info("f").here
    assert [info.path for info in files.list()] == ["f"]


# --- references -----------------------------------------------------------------------------------


def test_S9_references_follow_shares_and_deletions(nodes: Nodes) -> None:
    node = nodes.open("ana", "team", "other")
    files, elsewhere = team(node).files, node.mesh("other").files
    files.share("one", BIG)
    files.share("two", BIG)
    elsewhere.share("one", BIG)
    assert (refs(node), released(node)) == (3, False)
    files.share("one", BIG)
    assert refs(node) == 3, "the same again counts once"
    files.delete("one")
    elsewhere.delete("one")
    assert (refs(node), released(node)) == (1, False)
    files.share("two", b"small now")
    assert (refs(node), released(node)) == (0, True)


def test_S9_deleting_twice_counts_once(node: Node) -> None:
    files = team(node).files
    files.share("one", BIG)
    files.share("two", BIG)
    files.delete("one")
    with pytest.raises(UnknownFile):
        files.delete("one")
    later = e.raw("file.delete", "one", lamport=50, origin="bob", owner="ana")
    node.apply([later, later, e.raw("file.delete", "one", lamport=51, origin="cyd", owner="ana")])
    assert (refs(node), released(node)) == (1, False)


def test_S9_a_reshare_revives_a_blob_that_waits_for_unlinking(node: Node, clock: HandClock) -> None:
    files = team(node).files
    files.share("f", BIG)
    files.delete("f")
    assert released(node)
    files.share("g", BIG)
    assert (refs(node), released(node)) == (1, False)
    age(node, clock)
    assert node.sweep(NOW).blobs == 0
    assert files.read("g") == BIG


def test_S9_a_peers_share_revives_it_too(node: Node, clock: HandClock) -> None:
    team(node).files.share("f", BIG)
    team(node).files.delete("f")
    node.apply([e.file_share("g", BIG, lamport=9)])
    assert (refs(node), released(node)) == (1, False)
    clock.advance(10)
    node.sweep(NOW)
    assert team(node).files.read("g", peer="bob") == BIG


def test_S9_one_content_under_changing_versions(node: Node, clock: HandClock) -> None:
    files = team(node).files
    other = BIG[::-1]
    for content in (BIG, other, BIG, other):
        files.share("f", content)
    assert (refs(node), released(node)) == (0, True)
    assert refs(node, sha256(other).hexdigest()) == 1
    age(node, clock)
    assert node.sweep(NOW).blobs == 1
    assert files.read("f") == other


# --- sharing against sweeping ---------------------------------------------------------------------


class Meddling:
    """Lets a sweep of another process remove the blob just before the transaction."""

    def __init__(self, node: Node, times: int) -> None:
        self.node, self.times, self.seen = node, times, 0
        self._write = node._engine.write

    def __call__(self, name: str, work: Any) -> Any:
        if name == "file.share" and self.seen < self.times:
            self.seen += 1
            for sha in blob_names(self.node):
                self.node._engine.blobs.unlink(sha)
        return self._write(name, work)


@pytest.mark.parametrize("given", ["bytes", "path", "stream"])
def test_S9_a_share_whose_blob_is_swept_away_writes_it_again(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "source").write_bytes(BIG)
    stream = io.BytesIO(b"..." + BIG)
    stream.seek(3)
    source: Any = {"bytes": BIG, "path": tmp_path / "source", "stream": stream}[given]
    meddling = Meddling(node, 2)
    monkeypatch.setattr(node._engine, "write", meddling)
    team(node).files.share("f", source)
    assert meddling.seen == 2
    assert team(node).files.read("f") == BIG
    assert node.log.head().offset == 1, "the attempts that failed left nothing"


def test_S9_a_share_gives_up_rather_than_name_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node._engine, "write", Meddling(node, 99))
    with pytest.raises(BlobMissing):
        team(node).files.share("f", BIG)
    assert node.log.head().offset == 0


def test_S9_a_stream_that_is_used_up_is_not_shared_as_an_empty_file(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pipe(io.RawIOBase):
        """Like a pipe: read once."""

        def __init__(self) -> None:
            self._rest = io.BytesIO(BIG)

        def readable(self) -> bool:
            return True

        def seekable(self) -> bool:
            return False

        def readinto(self, buffer: Any) -> int:
            return self._rest.readinto(buffer)

    monkeypatch.setattr(node._engine, "write", Meddling(node, 1))
    with pytest.raises(BlobMissing, match="used up"):
        team(node).files.share("f", Pipe())  # type: ignore[arg-type]
    with pytest.raises(UnknownFile):
        team(node).files.read("f")
    team(node).files.share("f", Pipe())  # type: ignore[arg-type]
    assert team(node).files.read("f") == BIG


class Shelf:
    """What files there should be, kept by a plain dictionary."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"blobs {seed}")
        self.contents = [bytes([n]) * 70_000 for n in range(3)] + [b"small"]
        self.files: dict[tuple[str, str], bytes] = {}
        self._newest: dict[str, int] = {}

    def share(self, node: Node, path: str) -> None:
        content = self.rng.choice(self.contents)
        team(node).files.share(path, content)
        self.files["ana", path] = content

    def delete(self, node: Node, path: str) -> None:
        if self.files.pop(("ana", path), None) is not None:
            team(node).files.delete(path)
            return
        with pytest.raises(UnknownFile):
            team(node).files.delete(path)

    def arrive(self, node: Node, path: str, lamport_max: int) -> None:
        lamport = self.rng.randint(1, lamport_max)
        content = None if self.rng.random() < 0.3 else self.rng.choice(self.contents)
        if content is None:
            raw = e.raw("file.delete", path, lamport=lamport)
        else:
            node.receive_blob(content)
            raw = e.file_share(path, content, lamport=lamport)
        (applied,) = node.apply([raw])
        assert applied.error is None
        # A later envelope of the same stamp wins by its id, which grows.
        if lamport >= self._newest.get(path, 0):
            self._newest[path] = lamport
            self.files.pop(("bob", path), None)
            if content is not None:
                self.files["bob", path] = content

    def check(self, node: Node) -> None:
        for content in self.contents[:3]:
            sha = sha256(content).hexdigest()
            expected = sum(found == content for found in self.files.values())
            assert refs(node, sha) == expected
            assert released(node, sha) <= (expected == 0)

    def check_swept(self, node: Node) -> None:
        big = [content for content in self.files.values() if len(content) >= INLINE_BYTES_MAX]
        assert blob_names(node) == {sha256(content).hexdigest() for content in big}


@pytest.mark.parametrize("seed", seeds(4))
def test_S9_references_are_right_after_any_interleaving(
    nodes: Nodes, clock: HandClock, seed: int
) -> None:
    """Shares, deletions, arrivals, restarts and sweeps in any order, against a plain count."""
    shelf = Shelf(seed)
    node = nodes.open("ana")
    for step in range(120):
        clock.advance(1)
        act = shelf.rng.choice(["share", "share", "delete", "arrive", "sweep", "restart"])
        path = shelf.rng.choice("pq")
        if act == "share":
            shelf.share(node, path)
        elif act == "delete":
            shelf.delete(node, path)
        elif act == "arrive":
            shelf.arrive(node, path, step + 2)
        elif act == "sweep":
            age(node, clock)
            node.sweep(NOW)
            shelf.check_swept(node)
        elif shelf.rng.random() < 0.2:
            node = nodes.reopen(node)
        shelf.check(node)
    for (owner, path), content in shelf.files.items():
        assert team(node).files.read(path, peer=owner) == content
