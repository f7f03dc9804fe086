"""What a process of a broker is told when it begins.

It stands in a pipe that the process reads first: the address of PostgreSQL and the secret of the
sessions must not stand on a command line or in an environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast.broker.settings import BrokerSettings


class SharedListener(msgspec.Struct, frozen=True):
    """Where connections of one listener of the parent come through."""

    kind: str
    address: str
    fd: int


class ProcessPlace(msgspec.Struct, frozen=True):
    """One process among the others."""

    number: int
    """From 1."""
    parent: int
    """The process that they are children of, and that a broker is known by."""
    settings: BrokerSettings
    secret: bytes
    """By which all of them know their sessions; another one after a restart of the parent."""
    listeners: list[SharedListener]
    line_fd: int
    log_level: str
    log_format: str

    def __repr__(self) -> str:
        return f"ProcessPlace(number={self.number})"

    @property
    def leads(self) -> bool:
        """Whether it does what one process does for all: sweeps, the operator's calls."""
        return self.number == 1


def encode_place(place: ProcessPlace) -> bytes:
    return msgspec.json.encode(place, enc_hook=str)


def decode_place(raw: bytes) -> ProcessPlace:
    return msgspec.json.decode(raw, type=ProcessPlace, dec_hook=_path)


def _path(kind: type, value: Any) -> Any:
    assert kind is Path, "nothing else is not of JSON"
    return Path(value)
