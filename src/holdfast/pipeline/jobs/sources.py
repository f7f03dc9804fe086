"""The logs that a lake reads. The lake remembers them, so the next run needs no names.

They stand in `sources.json` beside the tables: addresses and folders, the names that logs were
given, and how to reach them. Secrets never: a token or a key is remembered by the path of its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import BROKER
from holdfast.rules.errors import BadInput, StoreCorrupt

_NAME: Final = "sources.json"
_PATHS: Final = ("token_file", "key_file", "ca")
_ADDRESSES: Final = ("http://", "https://", BROKER)


class LogSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One log: where it is, what it is called, how it is reached."""

    location: str
    log: str | None = None
    """What the log was called when it was last read; `status` shows it while the node is away."""
    name: str | None = None
    """The name that the user gave it in place of its own."""
    token_file: str | None = None
    key_file: str | None = None
    card: str | None = None
    ca: str | None = None
    pin: str | None = None

    def options(self) -> dict[str, str]:
        """The options that `open_log` needs to reach it."""
        fields = msgspec.structs.asdict(self)
        return {
            name: value
            for name, value in fields.items()
            if value is not None and name not in ("location", "log")
        }


class _Card(msgspec.Struct, kw_only=True):
    holdfast: str = "sources"
    version: int = 1
    logs: list[LogSource] = []


def log_source(location: str, **options: str | None) -> LogSource:
    """A log as the user named it, with absolute paths, so that it is found from any folder. The
    options are the fields of `LogSource`.
    """
    if location.startswith(_ADDRESSES):
        where = urlsplit(location)
        if where.username is not None or where.query:
            raise BadInput(
                "an address is remembered, so no secret may stand in it",
                hint="write https://host:port, and the token into a file: --token-file FILE",
            )
    elif location.startswith("unix:"):
        location = f"unix:{Path(location.removeprefix('unix:')).absolute()}"
    else:
        location = str(Path(location.removeprefix("file://")).absolute())
    for name in _PATHS:
        if (path := options.get(name)) is not None:
            options[name] = str(Path(path).absolute())
    return LogSource(location=location, **options)


def remembered(lake: Lake) -> list[LogSource]:
    """The logs that the lake has been given."""
    raw = lake.folder.read(_NAME)
    if raw is None:
        return []
    try:
        return msgspec.json.decode(raw, type=_Card).logs
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"{lake.root}/{_NAME} cannot be read: {error}",
            hint="remove that file and name the logs again: holdfast pipeline run LOG...",
        ) from None


def remember(lake: Lake, given: Iterable[LogSource]) -> list[LogSource]:
    """Adds logs to those of the lake, or replaces what it knew of them; returns all."""
    before = remembered(lake)
    known = {source.location: source for source in (*before, *given)}
    return _write(lake, before, list(known.values()))


def forgets(lake: Lake, log: str) -> bool:
    """Whether the lake reads a log of this location or name, so that `forget` would end that."""
    return any(log in (one.location, one.name, one.log) for one in remembered(lake))


def forget(lake: Lake, log: str) -> bool:
    """Stops reading a log, given by location or name; False if the lake does not know it. What was
    read of it stays in the lake.
    """
    before = remembered(lake)
    kept = [one for one in before if log not in (one.location, one.name, one.log)]
    return _write(lake, before, kept) != before


def _write(lake: Lake, before: Sequence[LogSource], now: list[LogSource]) -> list[LogSource]:
    if now != before:
        raw = msgspec.json.format(msgspec.json.encode(_Card(logs=now))) + b"\n"
        lake.folder.write(_NAME, raw, private=True)
    return now
