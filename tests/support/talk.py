"""Talking to a daemon under test, and looking at what that did to its home."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from holdfast.node.core.engine import NodeEngine
from holdfast.node.http.context import NodeApi
from support.daemon import Plain, UpInThread, ask
from support.dump import dump


@dataclass
class Talk:
    """One party that makes calls; without a token, the node's own user."""

    up: UpInThread
    address: str
    token: str | None = None

    @property
    def api(self) -> NodeApi:
        return self.up.daemon.api

    @property
    def engine(self) -> NodeEngine:
        return self.api.engine

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Plain:
        """Sends bytes as they are and anything else as JSON."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.address, method, path, raw, token=self.token, headers=said)

    def append(self, subject: str = "s", object: Any = 1, **more: Any) -> dict[str, Any]:
        fact = {"subject": subject, "predicate": "is", "object": object, **more}
        answer = self.ask("POST", "/v1/facts/append", fact)
        assert answer.status == 201, answer
        return dict(answer.json)

    def append_many(self, count: int, **more: Any) -> None:
        facts = [
            {"subject": f"s/{n}", "predicate": "is", "object": n, **more} for n in range(count)
        ]
        answer = self.ask("POST", "/v1/facts/append", {"facts": facts})
        assert [result["status"] for result in answer.json["results"]] == [201] * count

    def register(
        self, consumer: str = "reader", *, start: str | int = "start", **more: Any
    ) -> dict[str, Any]:
        asked = {"consumer": consumer, "from": start, **more}
        answer = self.ask("POST", "/v1/consumers", asked)
        assert answer.status == 200, answer
        return dict(answer.json)

    def fetch(
        self, consumer: str = "reader", *, start: int | None = None, **more: Any
    ) -> dict[str, Any]:
        asked = {"consumer": consumer, "from": start, **more}
        answer = self.ask("POST", "/v1/facts/fetch", asked)
        assert answer.status == 200, answer
        return dict(answer.json)

    def offsets(self, consumer: str = "reader", **more: Any) -> list[int]:
        return [entry["offset"] for entry in self.fetch(consumer, **more)["entries"]]

    def confirm(self, consumer: str = "reader", **more: Any) -> Plain:
        return self.ask("POST", "/v1/facts/confirm", {"consumer": consumer, **more})

    def range(self, accept: str = "", /, **query: Any) -> Plain:
        path = f"/v1/facts/range?{urlencode(query, doseq=True)}"
        return self.ask("GET", path, **({"accept": accept} if accept else {}))

    def truncate(self, below: int) -> None:
        """Forgets what is below an offset, as a sweep would."""
        now = self.engine.ctx.now_ms()
        self.engine.write("sweep.log", lambda tx: tx.log_truncate(below, below, now))

    def state(self) -> dict[str, Any]:
        """All that a call could have changed."""
        with self.engine.store.read() as reader:
            found = dump(reader)
        found["files"] = sorted(
            str(path) for path in self.up.daemon.api.node._opened.paths.blobs.rglob("*")
        )
        return found
