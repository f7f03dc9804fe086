"""Logs, wherever they are: of a node, of a broker, in a home on disk, in a backup, in an export.

    log = open_log("https://plant:7440", {"token_file": "/etc/holdfast/token", "pin": "…"})
    place = log.place()
    for batch in log.batches(place.epoch, place.first, place.head + 1): ...

All of them give the same columns (`arrow.LOG`), batch by batch. A range is given whole or ends in
an error that names the log and the offsets: no entry is ever left out silently.

An open log can be pickled for another process, which opens it again. Its `repr` shows the location
and never the token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from holdfast.rules.errors import BadInput, EpochChanged, HoldfastError, PastEnd, Truncated
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.limits import SECOND_MS, WATCH_MS
from holdfast.rules.shown_address import shown_address

BROKER: Final = "broker+"
"""The prefix of a broker's address, which would otherwise look like the address of a node."""
_SCHEMES: Final = ("http://", "https://", "unix:")
_KNOWN: Final = frozenset(
    {"token", "tokenfile", "keyfile", "card", "ca", "pin", "name", "retries", "consumer"}
)


class ReadCommit(NamedTuple):
    """A commit as a log has it."""

    record: bytes
    raw: bytes | None
    """The envelope; None if the log was truncated since."""


class LostOffsets(msgspec.Struct, frozen=True):
    """Entries from `first` to `last` that a broker removed before the reader had confirmed them."""

    first: int
    last: int
    rows: int
    """How many of these offsets were removed; the others are still there."""


class LogBounds(msgspec.Struct, frozen=True):
    """Name and epoch of a log, and the offsets that it holds: from `first` to `head`, both
    included. `head` is one less than `first` if the log is empty.
    """

    log: str
    epoch: int
    first: int
    head: int
    lost: LostOffsets | None = None
    """What this reader has lost; only a broker removes single entries."""


class ReadableLog(Protocol):
    """One log that can be read."""

    @property
    def location(self) -> str: ...

    @property
    def dense(self) -> bool:
        """Whether every offset between its bounds has an entry that this reader gets. A broker
        removes single entries, and a token or an export may leave out what is of other meshes.
        """

    def place(self) -> LogBounds: ...

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        """All entries with start <= offset < stop that pass the filter, in order.

        Truncated, EpochChanged, PastEnd or Unreachable if that is not possible; the batches that
        were given before are right.
        """

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        """What quorums have committed, in commit order, piece by piece: of each mesh the commits
        with a number above what is known of it. A log that has none gives none.
        """

    def register(self, consumer: str, start: int) -> None:
        """Asks the log to keep what this reader has not confirmed, from `start` on. A reader that
        is registered already keeps its place. A log that is never truncated does nothing.
        """

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        """Tells the log that this reader has everything up to the offset in safety."""

    def close(self) -> None: ...


class WakingLog(ReadableLog, Protocol):
    """A log that says by itself that it has grown."""

    def wait(self, consumer: str, place: LogBounds, patience_ms: int) -> None:
        """Returns when the log may have grown beyond a place that it had, after `patience_ms` at
        the latest, and at once when it is closed. Nobody else may use the log meanwhile, except to
        close it.
        """


class OpenedLog:
    """What all kinds of logs share. Without more, a log is never truncated, so it knows no readers,
    and it keeps nothing open between two reads.
    """

    dense = False

    def __init__(self, location: str, options: dict[str, str]) -> None:
        self.location = location
        self._options = options
        self._closed = threading.Event()

    def __reduce__(self) -> tuple[Callable[..., ReadableLog], tuple[str, dict[str, str]]]:
        return open_log, (self.location, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        return iter(())

    def register(self, consumer: str, start: int) -> None: ...

    def confirm(self, consumer: str, epoch: int, offset: int) -> None: ...

    def wait(self, consumer: str, place: LogBounds, patience_ms: int) -> None:
        """A log that nothing wakes is asked once a second."""
        self._closed.wait(min(patience_ms, WATCH_MS) / SECOND_MS)

    def close(self) -> None:
        self._closed.set()


def open_log(location: str, options: Mapping[str, str] | None = None) -> WakingLog:
    """Opens the log of a node (`http://`, `https://`, `unix:`), of a mesh at a broker
    (`broker+https://host:port/MESH`), of a home, a backup or an export.

    Options for nodes: `token` or `token_file`; `ca`, a file with the authority that signed the
    node's certificate; `pin`, the SHA-256 of the node's certificate or a file with the certificate;
    `retries`. For brokers: `key_file`, the home of a member or a file with its key; `card`, the
    broker's card; `consumer`, the name of the reader; `retries`. For all: `name`, which replaces
    the log's own name.
    """
    chosen = log_options(options or {})
    if location.startswith(BROKER):
        from holdfast.pipeline.logs.broker import BrokerLog

        return BrokerLog(location, chosen)
    if location.startswith(_SCHEMES):
        from holdfast.pipeline.logs.http import NodeLog

        return NodeLog(location, chosen)
    path = Path(location.removeprefix("file://"))
    if path.is_file():
        from holdfast.pipeline.logs.export import ExportLog

        return ExportLog(location, path, chosen)
    if not path.is_dir():
        raise BadInput(
            f"there is no log at {shown_address(location)}",
            hint="name a node (http://, https://, unix:), a mesh at a broker "
            "(broker+https://host:port/MESH), a home, a backup or an export",
        )
    from holdfast.pipeline.logs.disk import BackupLog, HomeLog

    kind = BackupLog if (path / "manifest.json").exists() else HomeLog
    return kind(location, path, chosen)


def log_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options that say how to reach a log, with names in lower case without underscores."""
    plain = {name.lower().replace("_", ""): text for name, text in given.items()}
    return {name: text for name, text in plain.items() if name in _KNOWN}


# --- errors that all kinds of logs raise alike --------------------------------------------------


def check_range(place: LogBounds, epoch: int, start: int, stop: int) -> None:
    """Raises the reason why the log does not hold the whole range, if it does not."""
    if epoch != place.epoch:
        raise EpochChanged(
            f"the log counts in epoch {place.epoch}, not {epoch}",
            epoch=place.epoch,
            hint="it was restored: read it again from its first offset; known entries do no harm",
        )
    if start < place.first and stop > start:
        raise Truncated(
            f"the first offset that is still there is {place.first}",
            first_available=place.first,
            hint=f"read on from offset {place.first}, or take what is missing from a backup",
        )
    if stop > place.head + 1:
        raise PastEnd(f"the log ends at {place.head}")


@contextmanager
def reading(name: str, location: str, epoch: int, start: int, stop: int) -> Iterator[None]:
    """Errors that are raised inside the block get the log and the offsets into their message."""
    try:
        yield
    except HoldfastError as error:
        raise located(error, name, location, epoch, start, stop) from error


def located(
    error: HoldfastError, name: str, location: str, epoch: int, start: int, stop: int
) -> HoldfastError:
    """The same error, with log and offsets in front of its message."""
    whose = f"log {name!r}" if name else "the log"
    where = f"offsets {start} to {stop - 1} in epoch {epoch} of {whose} at {location}"
    return reworded(error, f"{where}: {error.message}")


def reworded(error: HoldfastError, message: str) -> HoldfastError:
    """The same error with another message."""
    if isinstance(error, Truncated):
        return Truncated(message, first_available=error.first_available, hint=error.hint)
    if isinstance(error, EpochChanged):
        return EpochChanged(message, epoch=error.epoch, hint=error.hint)
    return type(error)(message, hint=error.hint)
