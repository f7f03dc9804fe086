"""How one comes and goes: `/login`, `/login/code` for the command, `/logout`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.apps.web import answers
from holdfast.apps.web.view import Proof
from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import BadToken, HoldfastError, NoRoute, NotGranted
from holdfast.rules.limits import CONSOLE_SESSION_MS, SECOND_MS
from holdfast.service.http.request import is_own
from holdfast.transport.http_server import LISTENER

if TYPE_CHECKING:
    from holdfast.apps.web.site import Site

_ENDED: Final = "Your session has ended. Log in again."


class OpenedConsole(msgspec.Struct, frozen=True):
    """What `holdfast console` needs to open a browser."""

    addresses: list[str]
    """Where a browser of this machine reaches the console."""
    code: str
    """It logs in once."""


async def answer(site: Site, scope: Scope, receive: Receive) -> Response:
    path, method = scope["path"], scope["method"]
    if path == "/login/code":
        if method != "POST":
            raise NoRoute("a code is asked for by POST")
        return await _code(site, scope)
    if path == "/logout":
        if method != "POST":
            raise NoRoute("one logs out by a form")
        return await _logout(site, scope, receive)
    if method == "POST":
        return await _login(site, scope, receive)
    return _ask(site, scope)


async def _code(site: Site, scope: Scope) -> Response:
    """A code for this node's own user, who alone can open the Unix socket."""
    if not is_own(scope):
        raise NotGranted("codes are given over the Unix socket", hint="run: holdfast console")
    await site.open_door()
    document = OpenedConsole(site.doors(), site.codes.make())
    return Response(msgspec.json.encode(document), headers=answers.PRIVATE, media_type=JSON)


def _ask(site: Site, scope: Scope, error: HoldfastError | None = None) -> Response:
    from holdfast.apps.web.site import query_of

    query = query_of(scope["query_string"])
    if error is None and site.session(scope) is not None:
        return answers.redirect(answers.own_path(query.get("next", "/")))
    values = site.common("Log in", {}) | {
        "next": answers.own_path(query.get("next", "/")),
        "error": error,
        "why": _ENDED if query.get("why") == "ended" else "",
    }
    status = 200 if error is None else error.http_status
    return answers.page(site.renderer.page("login.html", values), status)


async def _login(site: Site, scope: Scope, receive: Receive) -> Response:
    form = await site.form(scope, receive)
    try:
        proof = _proof(site, scope, form)
        caller = site.caller(proof)
    except HoldfastError as error:
        if not answers.wants_html(scope):
            raise
        return _ask(site, scope, error)
    secret = await site.served.api.run(site.sessions.begin, proof, f"{caller.kind}:{caller.name}")
    response = answers.redirect(answers.own_path(form.get("next", "/")))
    answers.set_cookie(response, scope, secret, CONSOLE_SESSION_MS // SECOND_MS)
    return response


def _proof(site: Site, scope: Scope, form: dict[str, str]) -> Proof:
    code, token = form.get("code", ""), form.get("token", "").strip()
    if code:
        if scope[LISTENER] == "tls":
            raise NotGranted(
                "a code is for a browser of this machine",
                hint="from other machines log in with a token: holdfast token add NAME --reads '*'",
            )
        site.codes.use(code)
        return Proof.own()
    if not token:
        raise BadToken("a token is missing", hint="make one: holdfast token add NAME --reads '*'")
    if not site.served.takes_tokens or not token.isascii() or not token.isprintable():
        raise BadToken("this token is not known here", hint="log in: holdfast console")
    return Proof(scope[LISTENER], token)


async def _logout(site: Site, scope: Scope, receive: Receive) -> Response:
    session = site.session(scope)
    if session is not None:
        form = await site.form(scope, receive)
        if not session.check_form(form.get("form_token", "")):
            raise NotGranted(
                "this form is not of your session", hint="go back, and reload the page"
            )
        await site.served.api.run(site.sessions.end, session)
    response = answers.redirect("/login")
    answers.drop_cookie(response, scope)
    return response
