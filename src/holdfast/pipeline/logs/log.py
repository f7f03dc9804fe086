"""Logs, wherever they are: of a node, of a broker, in a home on disk, in a backup, in an export.

    log = open_log("https://plant:7440", {"token_file": "/etc/holdfast/token", "pin": "…"})
    place = log.place()
    for batch in log.batches(place.epoch, place.first, place.head + 1): ...

All of them give the same columns (`logs_arrow.LOG`), batch by batch. A range is given whole or ends
in an error that names the log and the offsets: nothing is ever passed over.

A log that is open can be sent to another process, which opens it anew. What it shows of itself
names where it is and never the token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from holdfast.rules.errors import BadInput, EpochChanged, HoldfastError, PastEnd, Truncated
from holdfast.rules.filters import EVERYTHING, Filter

BROKER: Final = "broker+"
"""Stands before the address of a broker: it answers by HTTP too, and not as a node does."""
_SCHEMES: Final = ("http://", "https://", "unix:")
_KNOWN: Final = frozenset(
    {"token", "tokenfile", "keyfile", "card", "ca", "pin", "name", "retries", "consumer"}
)


class LostOffsets(msgspec.Struct, frozen=True):
    """So many of the offsets from `first` to `last` went before the reader had confirmed them."""

    first: int
    last: int
    rows: int


class LogBounds(msgspec.Struct, frozen=True):
    """Whose log, in which epoch, and what it holds: from `first` up to `head`, which is one less
    than `first` if it is empty.
    """

    log: str
    epoch: int
    first: int
    head: int
    lost: LostOffsets | None = None
    """Of whoever reads it, where a log tells single entries; the others are still there."""


class ReadableLog(Protocol):
    """One log that can be read."""

    @property
    def location(self) -> str: ...

    def place(self) -> LogBounds: ...

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        """The entries with start <= offset < stop that pass the filter, all of them, in order.

        Truncated, EpochChanged, PastEnd or Unreachable if that cannot be done; what was given until
        then is right.
        """

    def register(self, consumer: str, start: int) -> None:
        """From now on the log keeps what this reader has not confirmed, from `start` on. One that
        is registered already stays as it is. Logs that nobody truncates know no readers.
        """

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        """Everything up to the offset is kept elsewhere now."""

    def close(self) -> None: ...


def open_log(location: str, options: Mapping[str, str] | None = None) -> ReadableLog:
    """The log at an address (`http://`, `https://`, `unix:`), of a mesh at a broker
    (`broker+https://host:port/MESH`), in a home, a backup or an export.

    Options, of nodes: `token` or `token_file`; `ca`, a file with the authority that vouches for the
    node; `pin`, the SHA-256 of the node's certificate or a file with that certificate; `retries`.
    Of brokers: `key_file`, the home of a member or a file with its key; `card`, the broker's;
    `consumer`, as whom it is read; `retries`. Of all: `name`, which the log is given in place of
    its own.
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
            f"there is no log at {location!r}",
            hint="name a node (http://, https://, unix:), a mesh at a broker "
            "(broker+https://host:port/MESH), a home, a backup or an export",
        )
    from holdfast.pipeline.logs.disk import BackupLog, HomeLog

    kind = BackupLog if (path / "manifest.json").exists() else HomeLog
    return kind(location, path, chosen)


def log_options(given: Mapping[str, str]) -> dict[str, str]:
    """Those that say how to reach a log, by their names in lower case without underscores."""
    plain = {name.lower().replace("_", ""): text for name, text in given.items()}
    return {name: text for name, text in plain.items() if name in _KNOWN}


# --- what all kinds of logs say in the same words ----------------------------------------------


def check_range(place: LogBounds, epoch: int, start: int, stop: int) -> None:
    """A range that the log holds from end to end, or the reason why not."""
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
    """Errors from here name the log and the offsets that were asked for."""
    try:
        yield
    except HoldfastError as error:
        raise located(error, name, location, epoch, start, stop) from error


def located(
    error: HoldfastError, name: str, location: str, epoch: int, start: int, stop: int
) -> HoldfastError:
    whose = f"log {name!r}" if name else "the log"
    return prefixed(
        error, f"offsets {start} to {stop - 1} in epoch {epoch} of {whose} at {location}"
    )


def prefixed(error: HoldfastError, what: str) -> HoldfastError:
    """The same error, with what it is about in front."""
    return retold(error, f"{what}: {error.message}")


def retold(error: HoldfastError, message: str) -> HoldfastError:
    """The same error in other words."""
    if isinstance(error, Truncated):
        return Truncated(message, first_available=error.first_available, hint=error.hint)
    if isinstance(error, EpochChanged):
        return EpochChanged(message, epoch=error.epoch, hint=error.hint)
    return type(error)(message, hint=error.hint)
