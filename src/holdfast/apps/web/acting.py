"""What becomes of a form: its action is asked of the API, with the rights of its session.

A form posts to `/do/NAME`. It shows the token of its session, says where to go afterwards (`at`),
and whether what cannot be undone is meant (`sure`). A browser that follows gets the page from which
it came, with a sentence on it that says what was done; it works without a script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.apps.web import answers
from holdfast.apps.web.login.sessions import BrowserSession
from holdfast.apps.web.page import Action, ConsolePage, as_command, filled, words
from holdfast.apps.web.words import cut
from holdfast.rules.errors import BadInput, BadToken, HoldfastError, NoRoute, NotGranted
from holdfast.rules.limits import CONSOLE_ROWS

if TYPE_CHECKING:
    from holdfast.apps.web.site import Site

_PREFIX = "/do/"


async def act(site: Site, scope: Scope, receive: Receive, session: BrowserSession) -> Response:
    """The answer to a form."""
    name = scope["path"].removeprefix(_PREFIX) if scope["path"].startswith(_PREFIX) else ""
    action = site.served.actions.get(name)
    if action is None:
        raise NoRoute(f"the console has no form at {scope['path']}")
    if action.takes_file and "x-form-token" in Headers(scope=scope):
        from holdfast.apps.web import uploading

        return await uploading.share(site, scope, receive, session, action)
    form = await site.form(scope, receive)
    shown = form.pop("form_token", "") or Headers(scope=scope).get("x-form-token", "")
    if not session.check_form(shown):
        raise NotGranted("this form is not of your session", hint="go back, and reload the page")
    at = answers.own_path(form.pop("at", "/"))
    if action.takes_file:
        command = as_command(action.command, form)
        raise BadInput("a file is sent by a script, and none runs here", hint=f"use: {command}")
    is_sure = form.pop("sure", "") == "yes"
    is_of_nothing = bool(action.each) and not words(form.get(action.each, ""))
    if action.asks and not is_sure and not is_of_nothing:
        return _ask_first(site, session, action, form, at)
    try:
        if action.each:
            return await _do_each(site, session, action, form, at)
        answer = await _do(site, session, action, form)
    except BadToken:
        raise
    except HoldfastError as error:
        return await _say(site, session, action, form, at, error=error)
    if action.shows:
        values = _values(site, session, action, form, at) | {"answer": answer}
        values |= action.shown(answer)
        return answers.page(site.renderer.page(action.shows, values))
    return await _say(site, session, action, form, at)


async def _do(site: Site, session: BrowserSession, action: Action, form: Mapping[str, str]) -> Any:
    found = site.find("/")
    assert found is not None, "every console has a first page"
    view = site.view(session.proof, found[0], {}, {})
    method, path = action.address(form)
    body = action.body(form)
    if action.makes is not None:
        body |= await action.makes(form)
    return await view.call(
        method, path, query=action.query(form), body=body if action.has_body else msgspec.UNSET
    )


async def _do_each(
    site: Site, session: BrowserSession, action: Action, form: Mapping[str, str], at: str
) -> Response:
    """Makes the call for each that the form names; raises what the first was refused for if all
    were.
    """
    named = words(form.get(action.each, ""))[:CONSOLE_ROWS]
    if not named:
        raise BadInput("nothing is chosen", hint="mark what is meant")
    refused: dict[str, HoldfastError] = {}
    for one in named:
        try:
            await _do(site, session, action, {**form, action.each: one})
        except BadToken:
            raise
        except HoldfastError as error:
            refused[one] = error
    if len(refused) == len(named):
        raise next(iter(refused.values()))
    command = as_command(action.command, {**form, action.each: named[0]})
    left = [f"{one}: {error.message}" for one, error in refused.items()]
    told = {"count": str(len(named) - len(refused)), **_short(form)}
    site.keep_said(
        session,
        {
            "command": command,
            "tone": "warn" if refused else "good",
            "text": filled(action.done, told),
            "hint": "; ".join(left[:5]),
        },
    )
    return answers.redirect(at)


def _values(
    site: Site, session: BrowserSession, action: Action, form: Mapping[str, str], at: str
) -> dict[str, Any]:
    return site.common(action.label, {}) | {
        "action": action,
        "form": form,
        "fields": dict(form),
        "at": at,
        "command": as_command(action.command, form),
        "form_token": session.form_token,
        "logged_in": True,
        "may_write": site.caller(session.proof).is_local,
    }


def _ask_first(
    site: Site, session: BrowserSession, action: Action, form: Mapping[str, str], at: str
) -> Response:
    values = _values(site, session, action, form, at)
    values["question"] = filled(action.asks, _short(form))
    return answers.page(site.renderer.page("sure.html", values))


async def _say(
    site: Site,
    session: BrowserSession,
    action: Action,
    form: Mapping[str, str],
    at: str,
    *,
    error: HoldfastError | None = None,
) -> Response:
    """To the page from which the form came, with what it came to. What went wrong is shown at once,
    with the form as it was filled in; what was done is shown where it can be loaded again without
    doing it again.
    """
    said: dict[str, Any] = {"command": as_command(action.command, form)}
    if error is None:
        said |= {"tone": "good", "text": filled(action.done, _short(form)), "hint": ""}
        site.keep_said(session, said)
        return answers.redirect(at)
    said |= {"tone": "bad", "text": error.message, "hint": error.hint}
    page, params, query = _page_at(site, at)
    html = await site.page(session, page, params, query, at=at, said=said, form=form)
    return answers.page(html, error.http_status)


def _page_at(site: Site, at: str) -> tuple[ConsolePage, dict[str, str], dict[str, str]]:
    from holdfast.apps.web.site import query_of

    parts = urlsplit(at)
    found = site.find(unquote(parts.path)) or site.find("/")
    assert found is not None, "every console has a first page"
    return (*found, query_of(parts.query.encode()))


def _short(form: Mapping[str, str]) -> dict[str, str]:
    return {name: cut(value, 80) for name, value in form.items()}
