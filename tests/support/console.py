"""The console of a daemon under test, as a browser without a script would use it.

with console_up(home) as console:
    browser = console.browser()          # logged in as the node's own user
    browser.get("/").text
    browser.do("state.delete", mesh="team", key="a")
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from holdfast.apps.web.part import node_console
from holdfast.node.settings import Settings
from support.daemon import PATIENCE_S, UnixConnection, Up, UpInThread, running

HTML = "text/html"


@dataclass(frozen=True)
class Shown:
    """An answer, as a browser gets it."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def leads_to(self) -> str:
        return self.headers.get("location", "")


@dataclass
class Browser:
    """One browser: it keeps its cookie and follows nothing."""

    address: str
    cookie: str = ""
    form_token: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every request, in place of what a browser would send."""

    def get(self, path: str, **headers: str) -> Shown:
        return self.ask("GET", path, headers={"accept": HTML, **headers})

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Shown:
        told = {
            "accept": HTML,
            "content-type": "application/x-www-form-urlencoded",
            "origin": self.address,
            **headers,
        }
        return self.ask("POST", path, body=urlencode(form).encode(), headers=told)

    def do(self, action: str, *, at: str = "/", **form: str) -> Shown:
        """Sends the form of an action, as its button would."""
        return self.post(f"/do/{action}", {"form_token": self.token(), "at": at, **form})

    def done(self, action: str, *, at: str = "/", **form: str) -> Shown:
        """The same, and the page to which that leads."""
        answer = self.do(action, at=at, **form)
        return self.get(answer.leads_to) if answer.status == 303 else answer

    def token(self) -> str:
        """The token of its forms, as its pages show it."""
        if not self.form_token:
            text = self.get("/").text
            mark = 'name="form_token" value="'
            assert mark in text, text[:400]
            self.form_token = text.partition(mark)[2].partition('"')[0]
        return self.form_token

    def ask(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str]
    ) -> Shown:
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        line = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
        try:
            sent = {**headers, **self.headers}
            if self.cookie:
                sent["cookie"] = self.cookie
            line.request(method, path, body=body, headers=sent)
            answer = line.getresponse()
            text = answer.read().decode()
            found = {name.lower(): value for name, value in answer.getheaders()}
        finally:
            line.close()
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return Shown(answer.status, found, text)

    def log_in(self, **how: str) -> Shown:
        """By `code` or by `token`."""
        return self.post("/login", {"next": "/", **how})


@dataclass(frozen=True)
class Console:
    """The console of a daemon that is up."""

    up: Up

    def code(self) -> str:
        return str(opened(self.up)["code"])

    def stranger(self) -> Browser:
        return Browser(self.up.tcp)

    def browser(self, token: str = "") -> Browser:
        """A browser that is logged in: as the node's own user, or by a token."""
        found = self.stranger()
        done = found.log_in(token=token) if token else found.log_in(code=self.code())
        assert (done.status, done.leads_to) == (303, "/"), done.text
        return found


def opened(up: Up) -> dict[str, Any]:
    """What `holdfast console` asks of a daemon."""
    line = UnixConnection(up.unix.removeprefix("unix:"))
    try:
        line.request("POST", "/login/code")
        found: dict[str, Any] = json.loads(line.getresponse().read())
        return found
    finally:
        line.close()


@dataclass(frozen=True)
class ConsoleInThread(Console):
    """The same, of a daemon that can be looked into."""

    up: UpInThread


@contextmanager
def console_up(home: Path) -> Iterator[ConsoleInThread]:
    """A daemon in a thread with its console."""
    with running(home, Settings(tcp="127.0.0.1:0"), parts=node_console) as up:
        yield ConsoleInThread(up)
