"""The console as one ASGI application: which page a request is for, who asks, and what it is
answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from holdfast import __version__
from holdfast.apps.web import answers
from holdfast.apps.web.counted import Counted
from holdfast.apps.web.live.changes import Changes
from holdfast.apps.web.live.channel import Channels
from holdfast.apps.web.live.lags import LagRecord
from holdfast.apps.web.live.open_pages import OpenPages
from holdfast.apps.web.live.stream import LiveParts, stream
from holdfast.apps.web.login.codes import Codes
from holdfast.apps.web.login.sessions import BrowserSession, BrowserSessions
from holdfast.apps.web.page import Action, ConsolePage
from holdfast.apps.web.render import Renderer
from holdfast.apps.web.static_files import StaticFiles
from holdfast.apps.web.view import PageView, Proof
from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    HoldfastError,
    NoRoute,
    NotGranted,
    NotTrusted,
    WrongMethod,
)
from holdfast.rules.limits import BODY_BYTES_MAX, CONSOLE_QUERY_CHARS_MAX, CONSOLE_SESSIONS_MAX
from holdfast.service.caller import Caller
from holdfast.service.http.app import HttpApp
from holdfast.service.http.request import ANYONE, ClientGone, Request
from holdfast.service.http.route import Route
from holdfast.service.http.streaming import takes_gzip
from holdfast.transport.http_server import LISTENER

log = logging.getLogger("holdfast")

STREAM: Final = "console"
"""The kind of an open page among what a service answers at once."""


async def _no_handler(call: Request[Any]) -> Response:
    raise AssertionError("this stands for a request of a browser, which has its own")


WHO: Final = Route("GET", "/", _no_handler, "A page of the console.")
_FORM: Final = Route("POST", "/", _no_handler, "A form of the console.", public=True)


@dataclass(kw_only=True)
class ConsoleOf:
    """The node or broker that a console shows."""

    kind: str
    """`node` or `broker`."""
    name: str
    app: HttpApp
    api: Any
    pages: Sequence[ConsolePage]
    kept: Path
    """Where sessions are kept."""
    now_ms: Callable[[], int]
    takes_tokens: bool
    """A token logs in too, not only a code."""
    changes: Changes
    meshes: Callable[[PageView], Awaitable[Sequence[str]]]
    """The meshes that stand at the side."""
    lags: LagRecord | None = None
    lake: str | None = None
    """The lake that its page shows."""
    actions: dict[str, Action] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for page in self.pages:
            for action in page.actions:
                assert self.actions.setdefault(action.name, action) is action, action.name


class Site:
    """All pages of one daemon or broker."""

    def __init__(self, served: ConsoleOf) -> None:
        self.served = served
        self.files = StaticFiles()
        self.codes = Codes(served.now_ms, os.urandom)
        self.sessions = BrowserSessions(served.kept, served.now_ms, os.urandom)
        self.channels = Channels(served.changes)
        self._open_pages = OpenPages()
        self.counted = Counted(served.changes)
        self._renderer: Renderer | None = None
        self._form_mark = secrets.token_hex(16)
        """Stands for the token of a session's forms in parts that several sessions are sent."""
        self._said: dict[str, Mapping[str, Any]] = {}
        """By session: what its last form came to, until a page has said so."""
        self._pages = [(StarletteRoute(page.path, _unrouted), page) for page in served.pages]

    @property
    def renderer(self) -> Renderer:
        if self._renderer is None:
            self._renderer = Renderer()
        return self._renderer

    def kind(self, scope: Scope) -> str:
        """As what a request counts. Only who has a session is more than anybody."""
        if self.session(scope) is None:
            return "public"
        return STREAM if scope["path"] == "/live" else "call"

    def doors(self) -> list[str]:
        """Where a browser of this machine reaches the console."""
        return [one for one in self.served.api.doors if one.startswith("http://")]

    async def open_door(self) -> None:
        """Lets the service listen on loopback, if it does not."""
        if not self.doors() and self.served.api.open_door is not None:
            await self.served.api.open_door()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(scope, receive)
        except (ClientGone, asyncio.CancelledError):
            raise
        except HoldfastError as error:
            if not answers.wants_html(scope):
                raise
            response = self._refused(scope, error)
        except Exception:
            log.exception("a fault of ours in a page of the console")
            response = self._failed(scope)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        if path.startswith("/static/"):
            _need(scope, "GET", "HEAD")
            return self.files.answer(path.removeprefix("/static/"), scope)
        if method not in ("GET", "HEAD"):
            if method != "POST" and self.find(path) is None:
                raise NoRoute(f"this {self.served.kind} has nothing at {path}")
            _need(scope, "GET", "HEAD", "POST")
            _from_here(scope)
        if path in ("/login", "/login/code", "/logout"):
            from holdfast.apps.web.login import doors

            return await doors.answer(self, scope, receive)
        session = self.session(scope)
        if session is None:
            return self._stranger(scope)
        if method == "POST":
            from holdfast.apps.web import acting

            return await acting.act(self, scope, receive, session)
        if path == "/live":
            _need(scope, "GET")  # what stays open has no end that HEAD could wait for
            return self._live(scope, session)
        found = self.find(path)
        if found is None:
            raise NoRoute(f"the console has no page at {path}", hint="begin at /")
        query, said = query_of(scope["query_string"]), self._said.pop(session.id, None)
        html = await self.page(session, *found, query, at=_at(scope), said=said)
        return _packed(answers.page(html), scope)

    # --- who asks ------------------------------------------------------------------------------

    def session(self, scope: Scope) -> BrowserSession | None:
        return self.sessions.find(answers.cookie_of(scope))

    def caller(self, proof: Proof) -> Caller:
        """Who that is now; raises if a token has ended."""
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), text.encode()) for name, text in proof.headers().items()],
            LISTENER: proof.listener,
        }
        caller: Caller = self.served.api.admit(WHO, scope, _nothing).caller
        return caller

    def _stranger(self, scope: Scope) -> Response:
        if not answers.wants_html(scope):
            if scope["path"] != "/live" and self.find(scope["path"]) is None:
                raise NoRoute(f"this {self.served.kind} has nothing at {scope['path']}")
            if scope["path"] == "/":
                return self._for_programs()
            raise BadToken("nobody is logged in at the console", hint="log in: holdfast console")
        return answers.redirect(f"/login?next={_quoted(_at(scope))}")

    def _for_programs(self) -> Response:
        """What stands at `/` for who is no browser."""
        served = self.served
        document = {"service": served.kind, "version": __version__, "calls": "/openapi.json"}
        return Response(msgspec.json.encode(document), media_type=JSON)

    # --- pages ---------------------------------------------------------------------------------

    def find(self, path: str) -> tuple[ConsolePage, dict[str, str]] | None:
        """The page at a path, and what stands in the path."""
        scope = {"type": "http", "method": "GET", "path": path}
        for route, page in self._pages:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return page, found["path_params"]
        return None

    async def page(
        self,
        session: BrowserSession,
        page: ConsolePage,
        params: Mapping[str, str],
        query: Mapping[str, str],
        *,
        at: str,
        said: Mapping[str, Any] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> str:
        """A whole page. `said` is what an action came to, `form` what its form said if it has to be
        filled in again.
        """
        view = self.view(session.proof, page, params, query)
        values = await self._values(view, at, form_token=session.form_token)
        values |= {"said": said, "form": form or {}, "meshes": await self.served.meshes(view)}
        return self.renderer.page(page.template, values)

    def keep_said(self, session: BrowserSession, said: Mapping[str, Any]) -> None:
        """Keeps what a form came to for the next page of its session."""
        while len(self._said) >= CONSOLE_SESSIONS_MAX:
            self._said.pop(next(iter(self._said)))
        self._said[session.id] = said

    def view(
        self,
        proof: Proof,
        page: ConsolePage,
        params: Mapping[str, str],
        query: Mapping[str, str],
        *,
        live: bool = False,
    ) -> PageView:
        return PageView(
            self.served.app,
            page,
            proof,
            self.caller(proof),
            name=self.served.name,
            params=params,
            query=query,
            now_ms=self.served.now_ms,
            counted=self.counted,
            live=live,
            lags=self.served.lags,
            lake=self.served.lake,
        )

    async def _values(self, view: PageView, at: str, *, form_token: str) -> dict[str, Any]:
        return {
            **self.common(view.page.title, view.params),
            **await view.page.load(view),
            "view": view,
            "page": view.page,
            "params": view.params,
            "query": view.query,
            "at": at,
            "now": view.now_ms(),
            "may_write": view.may_write,
            "form_token": form_token,
            "form": {},
        }

    def common(self, title: str, params: Mapping[str, str]) -> dict[str, Any]:
        """What every page is given, that of the login too."""
        return {
            "served": self.served,
            "file": self.files.address,
            "title": title.format_map(params),
            "actions": self.served.actions,
        }

    # --- live parts ----------------------------------------------------------------------------

    def _live(self, scope: Scope, session: BrowserSession) -> Response:
        at = answers.own_path(query_of(scope["query_string"]).get("at", "/"))
        parts = urlsplit(at)
        found = self.find(_unquoted(parts.path))
        if found is None or not found[0].live:
            raise NoRoute(f"nothing is live at {parts.path}")
        page, params = found
        query = query_of(parts.query.encode())
        # With the same rights a page looks the same, but for the token of its forms.
        key = (
            page.path,
            tuple(sorted(params.items())),
            tuple(sorted(query.items())),
            session.proof,
        )

        async def make() -> Mapping[str, str]:
            view = self.view(session.proof, page, params, query, live=True)
            values = await self._values(view, at, form_token=self._form_mark)
            return self.renderer.parts(page.template, page.live, values)

        free = self._open_pages.take(self.caller(session.proof))
        onlooker = self.channels.join(key, make, page.wakes)

        def leave() -> None:
            self.channels.leave(key, onlooker)
            free()

        sending = stream(
            self.channels,
            key,
            onlooker,
            lambda: self.sessions.is_open(session),
            lambda html: html.replace(self._form_mark, session.form_token),
        )
        headers = {**answers.HEADERS, **answers.PRIVATE}
        return LiveParts(onlooker, sending, headers, leave)

    # --- forms ---------------------------------------------------------------------------------

    async def form(self, scope: Scope, receive: Receive) -> dict[str, str]:
        """What a form says. What came under one name several times stands behind commas."""
        call: Request[Any] = Request(self.served.api, _FORM, scope, receive, ANYONE)
        kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise BadInput(f"a form does not come as {kind or 'nothing'!r}")
        raw = await call.body(BODY_BYTES_MAX)
        said: dict[str, str] = {}
        for name, value in _pairs_of(raw):
            said[name] = f"{said[name]},{value}" if name in said else value
        return said

    # --- what goes wrong -----------------------------------------------------------------------

    def _refused(self, scope: Scope, error: HoldfastError) -> Response:
        if isinstance(error, NotTrusted) and self.session(scope) is not None:
            response = answers.redirect(f"/login?why=ended&next={_quoted(_at(scope))}")
            answers.drop_cookie(response, scope)
            return response
        return self.trouble(scope, error.http_status, error.code, error.message, error.hint)

    def _failed(self, scope: Scope) -> Response:
        words = ("something went wrong in this console", "its log says what")
        return self.trouble(scope, 500, "internal", *words)

    def trouble(self, scope: Scope, status: int, code: str, message: str, hint: str) -> Response:
        values = self.common("That did not work", {}) | {
            "code": code,
            "message": message,
            "hint": hint,
            "status": status,
            "logged_in": self.session(scope) is not None,
        }
        return answers.page(self.renderer.page("trouble.html", values), status)


def query_of(raw: bytes, *, most: int | None = CONSOLE_QUERY_CHARS_MAX) -> dict[str, str]:
    """What a query says; BadInput if it cannot be read."""
    if most is not None and len(raw) > most:
        raise BadInput(f"the address has more than {most} bytes behind its ?")
    return dict(_pairs_of(raw))


def _pairs_of(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=256
        )
    except ValueError:
        raise BadInput("what was sent cannot be read") from None


def _packed(response: Response, scope: Scope) -> Response:
    """A page, compressed if the browser takes that: fast, for it is made for one."""
    import zlib

    accepted = dict(scope["headers"]).get(b"accept-encoding", b"").decode("latin-1")
    if takes_gzip(accepted):
        packer = zlib.compressobj(1, wbits=31)
        response.body = packer.compress(bytes(response.body)) + packer.flush()
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    response.headers["vary"] = "accept, accept-encoding, cookie"
    return response


def _from_here(scope: Scope) -> None:
    """Raises unless a page of this console sends it. The listener has refused an Origin of others;
    a browser sends one with every POST, so a request without one is of no page.
    """
    headers = dict(scope["headers"])
    if scope["path"] == "/login/code" and scope[LISTENER] == "unix":
        return
    if not headers.get(b"origin") or headers.get(b"origin") == b"null":
        raise NotGranted(
            "forms of the console come from its own pages", hint="programs call /v1 instead"
        )
    if headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
        raise NotGranted("this form is of another page", hint="open the console by itself")


def _need(scope: Scope, *allowed: str) -> None:
    if scope["method"] not in allowed:
        scope["holdfast.allow"] = allowed
        raise WrongMethod(f"the console does not answer {scope['method']} here")


def _at(scope: Scope) -> str:
    """The address of a request, without its host."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    path = raw.partition(b"?")[0].decode("latin-1")
    return f"{path}?{query.decode('latin-1')}" if query else path


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="/")


def _unquoted(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)


async def _nothing() -> Any:
    raise AssertionError("who somebody is stands in the headers")


async def _unrouted(request: Any) -> Response:
    raise AssertionError("pages are found by their path alone")
