"""Where events of lineage go: to a file, one JSON document on a line, or to a server.

The environment names a server as the clients of OpenLineage do: `OPENLINEAGE_URL`,
`OPENLINEAGE_ENDPOINT`, `OPENLINEAGE_API_KEY`, `OPENLINEAGE_NAMESPACE`, `OPENLINEAGE_DISABLED`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import LINEAGE_MS_MAX
from holdfast.rules.shown_address import shown_address
from holdfast.storage.files.durable import disk_errors
from holdfast.transport.http_client import Client

NAMESPACE: Final = "holdfast"
"""The namespace of jobs, if the user names none."""
_ENDPOINT: Final = "api/v1/lineage"
_HEADERS: Final = {"Content-Type": "application/json"}


class Outlet(Protocol):
    """Takes events."""

    def emit(self, event: Mapping[str, Any]) -> None:
        """Gives an event away, or raises an error of ours."""


class FileOutlet(msgspec.Struct, frozen=True):
    """Appends events to a file."""

    path: Path

    def emit(self, event: Mapping[str, Any]) -> None:
        with disk_errors(f"write {self.path}"), self.path.open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")


class ServerOutlet(msgspec.Struct, frozen=True):
    """Posts events to a server."""

    address: str
    path: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"ServerOutlet({self.address}{self.path})"

    def emit(self, event: Mapping[str, Any]) -> None:
        body = msgspec.json.encode(event)
        client = Client(
            self.address, token=self.token, connect_ms=LINEAGE_MS_MAX, read_ms=LINEAGE_MS_MAX
        )
        with closing(client):
            client.call("POST", self.path, body=body, headers=_HEADERS)


class Lineage(msgspec.Struct, frozen=True):
    """An outlet, and the namespace under which it knows our jobs."""

    outlet: Outlet
    namespace: str = NAMESPACE


def lineage_to(target: str, environment: Mapping[str, str] = os.environ) -> Lineage:
    """Lineage to a file or to a server, which may need the key in the environment."""
    namespace = environment.get("OPENLINEAGE_NAMESPACE") or NAMESPACE
    if not target.startswith(("http://", "https://")):
        if "://" in target:
            raise BadInput(
                f"lineage cannot go to {shown_address(target)}",
                hint="name a file, http://… or https://…",
            )
        return Lineage(FileOutlet(Path(target)), namespace)
    found = urlsplit(target)
    # A URL without a path names a server, which expects events where the standard says.
    path = found.path.strip("/") or environment.get("OPENLINEAGE_ENDPOINT", _ENDPOINT)
    query = f"?{found.query}" if found.query else ""
    outlet = ServerOutlet(
        address=f"{found.scheme}://{found.netloc}",
        path=f"/{path.strip('/')}{query}",
        token=environment.get("OPENLINEAGE_API_KEY") or None,
    )
    Client(outlet.address, token=outlet.token).close()  # a bad address is refused before the run
    return Lineage(outlet, namespace)


def lineage_of(environment: Mapping[str, str]) -> Lineage | None:
    """Lineage as the environment asks for it; None if it does not."""
    url = environment.get("OPENLINEAGE_URL")
    if not url or environment.get("OPENLINEAGE_DISABLED", "").lower() in ("true", "1"):
        return None
    return lineage_to(url, environment)
