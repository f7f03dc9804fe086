"""A client of a daemon's stream of events."""

from __future__ import annotations

import json
from typing import Any

from support.daemon import UpInThread, connect


class Events:
    """A client that reads a stream of events."""

    def __init__(self, up: UpInThread, query: str = "", **settings: Any) -> None:
        self._connection = connect(settings.pop("address", up.unix))
        self._connection.request("GET", f"/v1/events{query}", headers=settings)
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.getheader("content-type", "").startswith("text/event-stream")
        retry, self.begun = self._block()
        assert (retry, self.begun[:4]) == ("retry: 1000", "id: ")

    def _block(self) -> list[str]:
        lines = []
        while line := self.answer.readline().decode().rstrip("\n"):
            lines.append(line)
        return lines

    def next(self) -> dict[str, Any]:
        """The next event, heartbeats passed over."""
        while True:
            fields = dict(line.split(": ", 1) for line in self._block() if not line.startswith(":"))
            if "data" in fields:
                return {**fields, "data": json.loads(fields["data"])}

    def offsets(self, count: int) -> list[int]:
        return [int(self.next()["id"].partition(":")[2]) for _ in range(count)]

    def close(self) -> None:
        self._connection.close()
        self.answer.close()
