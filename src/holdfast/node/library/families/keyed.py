"""What is kept under a key or a path, where the newest counts: state, memories, vectors, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.node.core import files, operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.files import Content
from holdfast.node.core.views import FileInfo, Hit, KeyVersion, LastKnown, Memory, StateEntry
from holdfast.node.library.families.family import Family, Rows
from holdfast.node.library.verbs import writes
from holdfast.node.log.history import AsOf, KeySpan, key_history, memory_as_of, state_as_of
from holdfast.node.upkeep import reembed
from holdfast.node.upkeep.reembed import HomeMoving, Moving
from holdfast.node.watching.verb import watches
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.cursor import Since
from holdfast.rules.errors import BadInput
from holdfast.rules.expected import Expect
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.listed import listed, listed_rows
from holdfast.rules.rows import FileRow, MemoryRow, ModelRow, StateRow
from holdfast.rules.vectors import Model
from holdfast.storage.ports import Reader, Work

if TYPE_CHECKING:
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.source import WatchSource


@checks_arguments(but=("get", "entry"))
class State(Family):
    """One value per key, shared by the whole mesh; the last writer wins."""

    @writes("state.set")
    def set(
        self,
        key: str,
        value: object,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        expect: Expect | None = None,
    ) -> Work[Receipt]:
        """Gives a key its value. The same `id` twice is one write. With `expect`, an entry's stamp
        or `holdfast.ABSENT`, it is refused (StampMoved) if something else is there on this node.

        >>> team.state.set("build", {"status": "green"}).stamp
        Stamp(lamport=..., peer='ana')
        >>> seen = team.state.entry("build")
        >>> team.state.set("build", "red", expect=seen.stamp)  # refused if it has changed
        """
        return operations.state_set(self._engine.ctx, self._mesh, key, value, id, meta, expect)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`.

        >>> team.state.get("colour")
        'blue'
        >>> team.state.get("nothing", default="none")
        'none'
        """
        entry = self.entry(key)
        return default if entry is None else entry.value

    def entry(self, key: str) -> StateEntry | None:
        """The value with who wrote it, and when.

        >>> team.state.entry("colour").peer
        'ana'
        """
        return self._engine.read("state.get", operations.state_entry(self._mesh, key))

    @writes("state.delete")
    def delete(
        self, key: str, *, id: str | None = None, expect: Expect | None = None
    ) -> Work[Receipt]:
        """Removes a key for every member of the mesh; with `expect` only if it has that stamp.

        >>> team.state.set("draft", 1)
        >>> team.state.delete("draft")
        """
        return operations.state_delete(self._engine.ctx, self._mesh, key, id, expect)

    @listed(StateEntry)
    @checked
    def list(self, prefix: str = "", *, after: str = "") -> Iterator[StateEntry]:
        """The keys that begin with a prefix, in order; `after` is a key: only what follows it.

        >>> [entry.key for entry in team.state.list("colou")]
        ['colour']
        """

        def scan(tx: Reader, behind: str) -> Sequence[StateRow]:
            return tx.state_scan(self._mesh, prefix, behind, CHUNK_ROWS)

        for row in self._rows(scan, lambda row: row.key, after):
            if not row.tombstone:
                yield StateEntry.of(row)

    @watches
    @checked
    def watch(self, prefix: str = "", *, since: Since = None) -> WatchSource[LogChange]:
        """Changes of keys that begin with a prefix, as they come. `since` is the
        `cursor` of a change, to go on after it, or `start`; without it the watch begins with what
        comes next.

        >>> with team.state.watch("colour", since="start") as changes:
        ...     next(changes).key
        'colour'
        """
        return self._follow("state", prefix, since)

    @listed_rows(StateEntry)
    @checked
    def as_of(
        self,
        key: str | None = None,
        *,
        offset: int | None = None,
        lamport: int | None = None,
        at_ms: int | None = None,
        prefix: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> Rows[StateEntry]:
        """The state as it was at an offset of our log, a Lamport time or a wall-clock time. Of many
        keys a part: those that begin with a prefix, follow a key, at most so many.

        >>> team.state.as_of("colour", offset=node.log.head().offset)[0].value
        'blue'
        """
        point, span = AsOf(offset, lamport, at_ms), KeySpan(prefix, after, limit)
        now_ms = self._engine.ctx.now_ms()
        return state_as_of(self._engine.store, self._mesh, key, point, now_ms, span)

    @listed_rows(KeyVersion)
    @checked
    def history(self, key: str, *, limit: int = 100) -> Rows[KeyVersion]:
        """The versions of a key that the log still holds, newest first: who wrote what, and when.

        >>> team.state.history("colour")[0].value
        'blue'
        """
        return self._engine.read(
            "state.history", lambda tx: key_history(tx, self._mesh, key, "state.", "", limit)
        )

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()


@checks_arguments()
class Memories(Family):
    """What each peer remembers, under its own name."""

    @writes("memory.set")
    def set(
        self,
        key: str,
        value: object,
        *,
        tags: Iterable[str] = (),
        id: str | None = None,
        expect: Expect | None = None,
    ) -> Work[Receipt]:
        """Remembers a value under a key, as this node's peer; `expect` as in `State.set`.

        >>> team.memory.set("style", "short answers", tags=["ana"])
        """
        return operations.memory_set(self._engine.ctx, self._mesh, key, value, tags, id, expect)

    def get(self, key: str, *, peer: str | None = None) -> Memory | None:
        """Our own memory, or that of one peer.

        >>> team.memory.get("note").value
        'hello'
        >>> team.memory.get("note", peer="bo")
        """
        found = self.recall(key, scope="self" if peer is None else f"peer:{peer}")
        return found[0] if found else None

    @listed_rows(Memory)
    @checked
    def recall(self, key: str, *, scope: str = "self") -> Rows[Memory]:
        """By scope: `self`, `peer:<id>`, or `all`, newest first.

        >>> [(found.peer, found.value) for found in team.memory.recall("note", scope="all")]
        [('ana', 'hello')]
        """
        owner = operations.owner_of(self._engine.ctx, scope)
        return self._engine.read("memory.get", operations.memory_recall(self._mesh, key, owner))

    @writes("memory.forget")
    def forget(
        self, key: str, *, id: str | None = None, expect: Expect | None = None
    ) -> Work[Receipt]:
        """Removes our own memory under a key; with `expect` only if it has that stamp.

        >>> team.memory.set("scratch", 1)
        >>> team.memory.forget("scratch")
        """
        return operations.memory_forget(self._engine.ctx, self._mesh, key, id, expect)

    @listed(Memory)
    @checked
    def list(self, *, scope: str = "self", after: tuple[str, str] = ("", "")) -> Iterator[Memory]:
        """All memories of a scope, by owner and key; `after` is an owner and a key: only what
        follows them.

        >>> "note" in [found.key for found in team.memory.list()]
        True
        """
        owner = operations.owner_of(self._engine.ctx, scope)

        def scan(tx: Reader, behind: tuple[str, str]) -> Sequence[MemoryRow]:
            return tx.memory_scan(self._mesh, owner, behind, CHUNK_ROWS)

        for row in self._rows(scan, lambda row: (row.owner, row.key), after):
            if not row.tombstone:
                yield Memory.of(row)

    @watches
    @checked
    def watch(
        self, prefix: str = "", *, scope: str = "all", since: Since = None
    ) -> WatchSource[LogChange]:
        """What peers remember and forget under keys that begin with a prefix, by scope: `all`,
        `self` or `peer:<id>`. `since` as in `State.watch`.

        >>> with team.memory.watch("note", since="start") as changes:
        ...     next(changes).op
        'memory.set'
        """
        return self._follow("memory", prefix, since, scope)

    @listed_rows(Memory)
    @checked
    def as_of(
        self,
        key: str | None = None,
        *,
        offset: int | None = None,
        lamport: int | None = None,
        at_ms: int | None = None,
    ) -> Rows[Memory]:
        """All peers' memories as they were.

        >>> team.memory.as_of("note", at_ms=now_ms)[0].value
        'hello'
        """
        point = AsOf(offset, lamport, at_ms)
        return memory_as_of(self._engine.store, self._mesh, key, point, self._engine.ctx.now_ms())

    @listed_rows(KeyVersion)
    @checked
    def history(self, key: str, *, peer: str | None = None, limit: int = 100) -> Rows[KeyVersion]:
        """The versions of our own memory that the log still holds, or of that of one peer, newest
        first.

        >>> team.memory.history("note")[0].value
        'hello'
        """
        scope = "self" if peer is None else f"peer:{peer}"
        owner = operations.owner_of(self._engine.ctx, scope) or ""
        return self._engine.read(
            "memory.history", lambda tx: key_history(tx, self._mesh, key, "memory.", owner, limit)
        )

    def _shown_rows(self) -> Iterable[Any]:
        return self.list(scope="all")


@checks_arguments()
class Vectors(Family):
    """Embeddings with their content, searched by nearness within one model."""

    @writes("vector.store")
    @checked
    def store(
        self,
        key: str,
        embedding: Any,
        *,
        model: Model,
        content: str = "",
        metadata: object = None,
        id: str | None = None,
    ) -> Work[Receipt]:
        """Stores an embedding under a key, in place of an older one of the same model.

        >>> model = holdfast.Model(provider="openai", name="text-3", dim=2)
        >>> team.vectors.store("boats", [1.0, 0.0], model=model, content="We sail")
        """
        return operations.vector_store(
            self._engine.ctx, self._mesh, key, embedding, model, content, metadata, id
        )

    @listed_rows(Hit)
    @checked
    def search(
        self,
        query: Any,
        *,
        model: Model,
        limit: int = 10,
        exact: bool = False,
        scope: str = "all",
    ) -> Rows[Hit]:
        """The nearest live vectors of this mesh; empty for a model that nobody has used.

        By scope: `all` (of every peer), `self`, or `peer:<id>`.

        >>> [hit.key for hit in team.vectors.search([0.9, 0.1], model=model, limit=1)]
        ['ships']
        """
        owner = operations.owner_of(self._engine.ctx, scope)
        read = operations.vector_search(self._mesh, query, model, limit, exact, owner)
        hits = self._engine.read("vector.search", read)
        reembed.note_read(self._engine, model)
        return hits

    @writes("vector.delete")
    @checked
    def delete(self, key: str, *, model: Model, id: str | None = None) -> Work[Receipt]:
        """Removes our own embedding under a key.

        >>> team.vectors.store("scratch", [0.0, 1.0], model=model)
        >>> team.vectors.delete("scratch", model=model)
        """
        return operations.vector_delete(self._engine.ctx, self._mesh, key, model, id)

    @watches
    @checked
    def watch(
        self, prefix: str = "", *, scope: str = "all", since: Since = None
    ) -> WatchSource[LogChange]:
        """Vectors that are stored and deleted, by scope. `since` as in `State.watch`.

        >>> with team.vectors.watch("ships", since="start") as changes:
        ...     next(changes).op
        'vector.store'
        """
        return self._follow("vector", prefix, since, scope)

    @listed_rows(ModelRow)
    @checked
    def models(self) -> Rows[ModelRow]:
        """Every model that vectors were stored with, oldest first.

        >>> [(known.name, known.dim) for known in team.vectors.models()]
        [..., 2)...]
        """
        return self._engine.read("vector.models", lambda tx: tx.model_list())

    def reembed(
        self,
        old: Model,
        new: Model,
        embed: Callable[[list[str]], Sequence[Any]],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Moves this peer's vectors to another model, in chunks; safe to stop and start again.

        >>> newer = holdfast.Model(provider="openai", name="text-4", dim=2)
        >>> team.vectors.reembed(older, newer, lambda texts: [[0.5, 0.5] for _ in texts])
        1
        """
        return reembed.reembed(self._moving(old, new), embed, progress)

    def _moving(self, old: Model, new: Model) -> Moving:
        return HomeMoving(self._engine, self._mesh, old, new)

    def _shown_rows(self) -> Iterable[Any]:
        return self.models()


@checks_arguments()
class Files(Family):
    """Files that a peer shares, by path; large ones are kept as content-addressed blobs."""

    def share(self, path: str, content: Content, *, id: str | None = None) -> Receipt:
        """Shares content under a path, in place of what this peer has shared there before.

        >>> team.files.share("docs/plan.md", b"# Plan")
        >>> team.files.share("photo.jpg", Path("photo.jpg"))
        """
        return files.share_file(self._engine, self._mesh, path, content, id)

    def read(self, path: str, *, peer: str | None = None) -> bytes:
        """The verified content of our own file, or of that of one peer.

        >>> team.files.read("notes.txt")
        b'We sail'
        """
        return files.read_file(self._engine, self._mesh, path, peer)

    def open(self, path: str, *, peer: str | None = None) -> BinaryIO:
        """A stream of verified content, for what should not be in memory at once.

        >>> with team.files.open("notes.txt") as stream:
        ...     stream.read(2)
        b'We'
        """
        return files.open_file(self._engine, self._mesh, path, peer)

    def last_known(self, path: str, *, peer: str | None = None) -> LastKnown:
        """The content if it is here, else that of the newest older version that is.

        >>> team.files.last_known("notes.txt").content
        b'We sail'
        """
        from holdfast.node.library.last_known import last_known

        return last_known(self._engine, self._mesh, path, peer)

    def info(self, path: str, *, peer: str | None = None) -> FileInfo:
        """Size, hash and time of a file, and whether its content is on this machine.

        >>> team.files.info("notes.txt").size
        7
        """
        row = files.find_file(self._engine, self._mesh, path, peer)
        return files.file_info(self._engine, row)

    @writes("file.delete")
    def delete(self, path: str, *, id: str | None = None) -> Work[Receipt]:
        """Removes our own file; the content goes when nothing names it any more.

        >>> team.files.share("scratch.txt", b"x")
        >>> team.files.delete("scratch.txt")
        """
        return operations.file_delete(self._engine.ctx, self._mesh, path, id)

    @listed(FileInfo)
    @checked
    def list(
        self,
        *,
        scope: str = "all",
        peer: str | None = None,
        after: tuple[str, str] = ("", ""),
    ) -> Iterator[FileInfo]:
        """Files by scope: `all`, `self` or `peer:<id>`, by owner and path. `peer="ana"` is short
        for `scope="peer:ana"`; `after` is an owner and a path: only what follows them.

        >>> "notes.txt" in [file.path for file in team.files.list(scope="self")]
        True
        """
        owner = operations.owner_of(self._engine.ctx, _scope(scope, peer))
        return self._listed(owner, after)

    @watches
    @checked
    def watch(
        self, prefix: str = "", *, scope: str = "all", since: Since = None
    ) -> WatchSource[LogChange]:
        """Files that are shared and deleted, by scope. `since` as in `State.watch`.

        >>> with team.files.watch("notes", since="start") as changes:
        ...     next(changes).key
        'notes.txt'
        """
        return self._follow("file", prefix, since, scope)

    def _listed(self, owner: str | None, after: tuple[str, str]) -> Iterator[FileInfo]:
        def scan(tx: Reader, behind: tuple[str, str]) -> Sequence[FileRow]:
            return tx.file_scan(self._mesh, owner, behind, CHUNK_ROWS)

        for row in self._rows(scan, lambda row: (row.owner, row.path), after):
            if not row.tombstone:
                yield files.file_info(self._engine, row)

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()


def _scope(scope: str, peer: str | None) -> str:
    if peer is None:
        return scope
    if scope != "all":
        raise BadInput("a scope and a peer are two answers to one question", hint="give one")
    return f"peer:{peer}"
