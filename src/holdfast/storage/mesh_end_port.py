"""What a store must do so that a mesh can be deleted: in small steps, and all of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.rules.rows import EndedMesh


class ErasePlace(NamedTuple):
    """How far the removal of a mesh has got. A removal that begins anew finds what is left."""

    step: int = 0
    after: int = 0
    """Rows up to this one were looked at, where a step looks at all rows of a table."""


class Erased(NamedTuple):
    """What one step came to."""

    rows: int
    next: ErasePlace | None
    """None: nothing of the mesh is left but its row."""


class MeshEndReader(Protocol):
    def ended_mesh(self, mesh: str) -> EndedMesh | None:
        """A mesh that was deleted here, or is being deleted; also if it has come back since."""

    def ended_meshes(self) -> list[EndedMesh]:
        """By name."""

    def log_last_of(self, mesh: str) -> int:
        """The offset of the last entry of a mesh; 0 if there is none. It may look at all of the
        log.
        """

    def log_count_of(self, mesh: str) -> int:
        """How many entries of the log are of a mesh. It looks at all of the log."""

    def log_holes(self, first: int, last: int) -> list[tuple[int, int]]:
        """Which offsets between these two, both included, went from the middle of the log with
        their mesh: ranges with both ends included.
        """


class MeshEndWriter(MeshEndReader, Protocol):
    def mesh_end_begin(self, mesh: str, now_ms: int) -> EndedMesh:
        """From now on nobody finds the mesh: it cannot be read, written or listed, and no part of
        the node goes on with it. UnknownMesh if there is none.
        """

    def mesh_erase(self, mesh: str, place: ErasePlace, most: int, now_ms: int) -> Erased:
        """Removes up to about `most` rows of a mesh that has ended, and looks at a bounded number
        of others. Blobs of which the last name goes are released, at the offset 0. The last entry
        of the log must not be of the mesh.
        """

    def mesh_end_done(self, mesh: str, now_ms: int) -> None:
        """Removes the row of the mesh itself, when nothing refers to it."""

    def ended_mesh_dropped(self, mesh: str, count: int) -> None:
        """Counts envelopes that came for a mesh which is not here any more."""
