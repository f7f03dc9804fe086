"""Homes whose buses speak with each other.

    with Homes(tmp_path) as homes:
        ana, bo = homes.pair("ana", "bo")        # both trust each other; bo knows where ana is
        bo.bus.send("ana", "hello")

The bus of `ana` is held by her process, or by a daemon of hers and asked by the process: programs
must not notice which.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import holdfast
from holdfast.node.library.node import Node
from holdfast.node.settings import BusSettings, Settings
from holdfast.node.trust.trust import Trust
from holdfast.storage.files.home import HomePaths
from support.daemon import UpInThread, make_home, running

ANYWHERE: Final = "127.0.0.1:0"
LISTENING: Final = Settings(bus=BusSettings(listen=[ANYWHERE]))
PATIENCE_MS: Final = 60_000
HOLDERS: Final = ("process", "daemon")


def trust_of(node: Node) -> Trust:
    return Trust(node._engine, HomePaths(node.home))


class Homes:
    """Homes below one folder, and whatever of theirs is open."""

    def __init__(self, folder: Path, holder: str = "process") -> None:
        self.folder, self.holder = folder, holder
        self.daemons: dict[str, UpInThread] = {}
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stack.close()

    def home(self, name: str) -> Path:
        folder = self.folder / name
        return folder if folder.exists() else make_home(folder, name)

    def open(self, name: str) -> Node:
        return self.stack.enter_context(holdfast.open(self.home(name), sync="normal"))

    def serve(self, name: str, settings: Settings = LISTENING) -> UpInThread:
        """A daemon for this home, in a thread."""
        up = self.daemons[name] = self.stack.enter_context(running(self.home(name), settings))
        return up

    def listening(self, name: str) -> Node:
        """A node that can be reached; who holds its bus depends on this fixture."""
        if self.holder == "daemon":
            self.serve(name)
            return self.open(name)
        node = self.open(name)
        node.bus.bind(listen=ANYWHERE)
        return node

    def pair(self, first: str = "ana", second: str = "bo") -> tuple[Node, Node]:
        """Two nodes that trust each other. The second one knows where the first one is."""
        nodes = self.listening(first), self.open(second)
        befriend(*nodes)
        return nodes


def befriend(first: Node, second: Node) -> None:
    """Each trusts the other, and the second is told where the first is."""
    trust_of(first).trust(trust_of(second).card())
    at = first.bus.status().listening
    trust_of(second).trust(trust_of(first).card(), at=at)
