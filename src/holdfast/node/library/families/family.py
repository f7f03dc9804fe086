"""What every family is made of, and how it reads many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from holdfast.node.core import operations
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.cursor import Since
from holdfast.rules.shown import ShownFace
from holdfast.storage.ports import Reader

if TYPE_CHECKING:
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.source import WatchSource

K = TypeVar("K")
R = TypeVar("R")

# The families have a verb `list`, which hides the type of that name inside their classes.
Rows: TypeAlias = list[R]


class Family(ShownFace):
    """What the families of a mesh share: where they read, and how they follow what is new."""

    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        self._engine = engine
        self._mesh = mesh

    def _follow(
        self, family: str, prefix: str, since: Since, scope: str = "all"
    ) -> WatchSource[LogChange]:
        """What is new in a family, of all peers or of some."""
        # Imported only here: most callers do not wait.
        from holdfast.node.watching.changes import LogFollowing, watch_filter

        owner = operations.owner_of(self._engine.ctx, scope)
        filter, _ = watch_filter(mesh=self._mesh, prefix=prefix, peer=owner, families=(family,))
        return LogFollowing(self._engine, since, filter)

    def _rows(
        self, scan: Callable[[Reader, K], Sequence[R]], place: Callable[[R], K], first: K
    ) -> Iterator[R]:
        """All rows, page by page: `scan` reads the page after a place, `place` tells where a row
        stands, and `first` is before all of them.
        """
        after = first

        def page(tx: Reader) -> Sequence[R]:
            nonlocal after
            rows = scan(tx, after)
            after = place(rows[-1]) if rows else after
            return rows

        return self._engine.pages(page)
