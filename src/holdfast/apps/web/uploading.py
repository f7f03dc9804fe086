"""A file that a browser shares: its content goes to the call as it comes, and is never in memory.

A form without a script would wrap the content into parts. So a script sends it bare
(`static/upload.js`), with the fields of the form in the address and the token of the session in a
header, and shows what it is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.apps.web import answers
from holdfast.apps.web.login.sessions import BrowserSession
from holdfast.apps.web.page import Action, as_command, filled
from holdfast.apps.web.words import cut
from holdfast.rules.errors import AlreadyExists, BadInput, NotFound, NotGranted

if TYPE_CHECKING:
    from holdfast.apps.web.site import Site

_KIND = "application/octet-stream"


async def share(
    site: Site, scope: Scope, receive: Receive, session: BrowserSession, action: Action
) -> Response:
    """The answer to the script: nothing, and the next page says what was done."""
    from holdfast.apps.web.site import query_of

    headers, form = Headers(scope=scope), query_of(scope["query_string"])
    if not session.check_form(headers.get("x-form-token", "")):
        raise NotGranted("this form is not of your session", hint="reload the page")
    if headers.get("content-type") != _KIND or "content-length" not in headers:
        raise BadInput(f"a file comes as {_KIND}, with its length")
    found = site.find("/")
    assert found is not None, "every console has a first page"
    view = site.view(session.proof, found[0], {}, {})
    if not form.get("path"):
        raise BadInput("a file is shared under a path", hint="fill in: path")
    info = filled("/v1/meshes/{mesh}/file-info/{path}", form)
    if form.get("replace") != "yes":
        try:
            await view.get(info)
        except NotFound:
            pass
        else:
            raise AlreadyExists(
                f"{cut(form['path'], 80)} is shared already by this node",
                hint="mark that it is to be replaced, or choose another path",
            )
    method, path = action.address(form)
    told = {"content-type": _KIND, "content-length": headers["content-length"]}
    await view.call(method, path, headers=told, content=receive)
    short = {name: cut(value, 80) for name, value in form.items()}
    said = {"tone": "good", "text": filled(action.done, short), "hint": ""}
    site.keep_said(session, said | {"command": as_command(action.command, form)})
    return Response(b"", 204, headers={**answers.HEADERS, **answers.PRIVATE})
