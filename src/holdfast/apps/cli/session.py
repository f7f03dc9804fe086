"""One command at work: the home it opens, the mesh it means, the answer in two forms.

A command opens what it needs through its `CommandSession` and answers through it: a JSON document
for programs, or text for people. Warnings that the node has for its user go with the answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.apps.cli import asking, output, suggest, tables
from holdfast.apps.cli.relay import relaying
from holdfast.node.core.change import Receipt
from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Mesh, Node
from holdfast.rules.errors import (
    BadInput,
    Conflict,
    HoldfastError,
    NeedsHome,
    NotAllowed,
    NotFound,
    NotGranted,
    Unknown,
    UnknownMesh,
)
from holdfast.rules.rows import WarningRow
from holdfast.rules.warnings_told import warning_document
from holdfast.storage.files.home import resolve_home

if TYPE_CHECKING:
    from holdfast.apps.cli.lists.listing import Listing
    from holdfast.storage.files.contexts import Context

Document = Mapping[str, Any]


class CommandSession:
    """The options that all commands share, and what they do with them."""

    def __init__(
        self,
        *,
        home: str | None = None,
        mesh: str | None = None,
        as_json: bool = False,
        takes_id: bool = False,
        id: str | None = None,
        dry_run: bool = False,
        yes: bool = False,
        listing: Listing | None = None,
        context: str | None = None,
    ) -> None:
        self.named_context = context
        self._named_home = home
        self.as_json = as_json
        self.named_mesh = mesh
        """None where no mesh was named: some commands then look at all of them."""
        self.dry_run = dry_run
        self.yes = yes
        self._listing = listing
        self._takes_id = takes_id
        self._asked_id = id
        self._open: tuple[Node, str | None] | None = None
        self._warnings: list[WarningRow] = []
        """Taken from the node, and not printed yet."""

    # --- what it works on --------------------------------------------------------------------

    @property
    def home(self) -> str | None:
        """The home that was named, or that the context in force names."""
        return self._place[0]

    @property
    def far(self) -> Context | None:
        """What the context in force names, if that is no home of this machine."""
        return self._place[1]

    @cached_property
    def _place(self) -> tuple[str | None, Context | None]:
        named = self._named_home
        if named is not None and self.named_context is not None:
            raise BadInput("--home and --context are two answers to one question")
        if named is not None or (self.named_context is None and os.environ.get("HOLDFAST_HOME")):
            return named, None
        from holdfast.storage.files.contexts import contexts_of, in_force

        contexts = contexts_of(os.environ)
        counts = in_force(self.named_context, contexts, os.environ)
        if counts is None:
            return None, None
        try:
            found = contexts.get(counts.name)
        except HoldfastError as error:
            error.message += f" ({counts.why})"
            raise
        return (found.place, None) if found.kind == "home" else (None, found)

    @cached_property
    def id(self) -> str:
        """The id of this write, made before it: so it is known even if the outcome is not."""
        from holdfast.rules.ids import id_text, parse_id
        from holdfast.service.clock import SystemClock

        return id_text(
            SystemClock().new_id() if self._asked_id is None else parse_id(self._asked_id)
        )

    @cached_property
    def key(self) -> str:
        """The idempotency key of this message: any text, or an id that is made before it."""
        return self.id if self._asked_id is None else self._asked_id

    @contextmanager
    def node(self, *, peer: str | None = None, create: bool = False) -> Iterator[Node]:
        with self.relaying(), self._opened(peer, create) as node:
            try:
                yield node
            except Unknown as error:
                error.hint = (
                    output.retry_hint(self.key)
                    if self._takes_id
                    else "look whether it happened, and if not, retry"
                )
                raise
            except HoldfastError as error:
                suggest.amend(node, error, self.named_mesh)
                raise

    def _opened(self, peer: str | None, create: bool) -> Node:
        """The home; or the daemon of the context, by the same verbs."""
        if self.far is None:
            self.check_home()
            opened = open_home(self.home, peer=peer, create=create, environ=os.environ)
            return Node(opened)
        from holdfast.node.remote.opening import connect_at, context_place

        return connect_at(context_place(self.far))

    def check_home(self) -> Path:
        """Where the home is, or is to be."""
        if self.far is not None:
            raise NeedsHome(
                f"the context names a {self.far.kind} at {self.far.place}; this command works on a "
                "home of this machine",
                hint="name one with --home FOLDER",
            )
        return resolve_home(self.home, os.environ)

    @contextmanager
    def warning_node(self) -> Iterator[Node]:
        """As `node`; by the end of the block the warnings of all meshes are printed."""
        with self.node() as node, self._warning(node, None):
            yield node

    @contextmanager
    def mesh(self, name: str | None = None) -> Iterator[Mesh]:
        """The mesh of this name, else of --mesh, else the only one; by the end of the block its
        warnings are printed.
        """
        self.named_mesh = name or self.named_mesh
        with self.node() as node:
            mesh = node.mesh(self.named_mesh or _only_mesh(node))
            with self._warning(node, mesh.slug):
                yield mesh

    @contextmanager
    def _warning(self, node: Node, mesh: str | None) -> Iterator[None]:
        self._open = (node, mesh)
        try:
            yield
        except (Conflict, NotAllowed, NotFound):
            # A warning often says why the command is refused.
            self._collect()
            raise
        else:
            self._collect()
        finally:
            self._open = None
            for row in self._warnings:
                self.warn(**warning_document(row))

    @property
    def opened(self) -> Node:
        """The node, while a mesh is open."""
        assert self._open is not None, "no mesh is open"
        return self._open[0]

    @property
    def peer(self) -> str:
        """The name of the node, while a mesh is open."""
        return self.opened.peer

    def _collect(self) -> None:
        if self._open is not None:
            node, mesh = self._open
            # A token for reading takes none: they stay for the node's own user.
            with suppress(NotGranted):
                self._warnings += node.take_warnings(mesh)

    def goes_on(self, what: str, *, asks: bool = True, **document: object) -> bool:
        """Whether to do what removes something, said as `delete the key 'k'`. After `--dry-run` it
        only says that. A person at a terminal is asked, unless `--yes` or `--json` was given or it
        needs no question.
        """
        if self.dry_run:
            self.talk(f"would {what}; nothing was changed")
            self.show({**document, "dry_run": True}, "")
            return False
        if asks and not self.as_json and asking.at_terminal():
            asking.agree(f"{what[0].upper()}{what[1:]}?", yes=self.yes, paste="")
        return True

    # --- what it answers ---------------------------------------------------------------------

    def show(self, document: Document, text: str | None = None, *, fields: str = "") -> None:
        """One object: as JSON, else as this text, else as a card of these fields."""
        if self.as_json:
            self._show_json(document)
        elif text is not None:
            output.out(text)
        else:
            tables.card(document, fields.split())

    def receipt(self, mesh: Mesh, done: Receipt, op: str, sentence: str, **subject: object) -> None:
        """The answer to a write into a mesh; the sentence goes on with the mesh and the stamp."""
        document = output.receipt(done, mesh.slug, op=op, **subject)
        self.wrote(document, f"{sentence} {mesh.slug} at {done.stamp}")

    def wrote(self, document: Document, sentence: str) -> None:
        """The answer to a write: its id as data, the sentence as talk."""
        if self.as_json:
            self._show_json(document)
        else:
            output.said(document, sentence)

    def rows(self, documents: Iterable[Document], fields: str, *, empty: str) -> None:
        """A list: as a JSON array, or as a table of these fields; as its options say where the
        command has them. It is not held in memory.
        """
        if self._listing is not None:
            self._listing.print(documents, fields.split(), empty=empty)
        elif self.as_json:
            tables.json_array(documents)
        elif not tables.table(documents, fields.split()):
            output.talk(empty)

    def talk(self, text: str) -> None:
        """A line for people only: programs find what it says in the document."""
        if not self.as_json:
            output.talk(text)

    def warn(self, type: str, message: str, **more: object) -> None:
        output.warn(self.as_json, type, message, **more)

    def _show_json(self, document: Document) -> None:
        # A JSON object has room for warnings. An array has not: there they go to stderr.
        self._collect()
        if self._warnings:
            document = {**document, "warnings": [warning_document(row) for row in self._warnings]}
            self._warnings = []
        output.out(f"{tables.encode(document).decode()}\n")

    def relaying(self) -> AbstractContextManager[None]:
        """Prints what the library logs meanwhile as warnings."""
        return relaying(lambda text: self.warn("home", text))


def _only_mesh(node: Node) -> str:
    slugs = [row.slug for row in node.meshes()]
    if not slugs:
        raise UnknownMesh(
            "this home has no mesh yet", hint="create one with: holdfast mesh create NAME"
        )
    if len(slugs) > 1:
        raise BadInput(
            f"this home has several meshes: {', '.join(slugs)}",
            hint="name one with --mesh NAME or in $HOLDFAST_MESH",
        )
    return slugs[0]
