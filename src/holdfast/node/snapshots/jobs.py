"""How far a snapshot of a mesh has got, in the store and for people.

An upload and a download each keep a row of the table of jobs, so that they go on after a crash.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with what is counted, how many are done, and the total if it is known."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """The `Progress` of a caller that shows none."""


def jobs_of(mesh: str) -> tuple[str, ...]:
    """The names of all jobs about snapshots of a mesh."""
    return upload_job(mesh), download_job(mesh), made_job(mesh)


def upload_job(mesh: str) -> str:
    """An upload that is not complete."""
    return f"mesh-snapshot-up:{mesh}"


def download_job(mesh: str) -> str:
    """A download that is not complete."""
    return f"mesh-snapshot-down:{mesh}"


def made_job(mesh: str) -> str:
    """The last snapshot that this node has made."""
    return f"mesh-snapshot-made:{mesh}"
