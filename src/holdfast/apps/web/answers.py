"""Answers for browsers: HTML with the headers that keep a page from running or showing anything but
what this process has sent.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from holdfast.rules.limits import CONSOLE_QUERY_CHARS_MAX
from holdfast.transport.http_server import LISTENER

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    # With `no-referrer` a browser would say of the forms of these pages that nobody sends them.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
"""On every answer of the console. `nosniff` stands on every answer of the service."""
PRIVATE: Final = {"cache-control": "no-store"}
FOR_EVER: Final = {"cache-control": "public, max-age=31536000, immutable"}
HTML: Final = "text/html; charset=utf-8"


def page(html: str, status: int = 200) -> Response:
    return Response(html, status, headers={**HEADERS, **PRIVATE}, media_type=HTML)


def redirect(path: str) -> Response:
    """To another address of the console, to be fetched by GET."""
    return Response(b"", 303, headers={**HEADERS, **PRIVATE, "location": path})


def wants_html(scope: Scope) -> bool:
    """A browser says so. Programs get JSON, as everywhere else."""
    return "text/html" in Headers(scope=scope).get("accept", "")


def own_path(text: str) -> str:
    """Where somebody wants to go next, if that is a path of this console; else its first page."""
    # An address is ASCII as browsers send it, and no header of an answer takes anything else.
    plain = text.isascii() and text.isprintable() and "\\" not in text
    plain = plain and len(text) <= CONSOLE_QUERY_CHARS_MAX
    return text if plain and text.startswith("/") and not text.startswith("//") else "/"


# --- the cookie --------------------------------------------------------------------------------


def cookie_name(scope: Scope) -> str:
    """Browsers send a cookie to every port of a host: the name tells the services apart."""
    server = scope.get("server") or ("", 0)
    return f"holdfast_{server[1]}"


def cookie_of(scope: Scope) -> str:
    """The secret in the cookie of this service; empty without one. Two of the name are none."""
    name = cookie_name(scope)
    found = [
        value.strip()
        for raw_name, raw in scope["headers"]
        if raw_name == b"cookie"
        for part in raw.decode("latin-1").split(";")
        for key, _, value in [part.partition("=")]
        if key.strip() == name
    ]
    return found[0] if len(found) == 1 else ""


def set_cookie(response: Response, scope: Scope, secret: str, seconds: int) -> None:
    secure = "; Secure" if scope[LISTENER] == "tls" else ""
    response.headers.append(
        "set-cookie",
        f"{cookie_name(scope)}={secret}; Path=/; Max-Age={seconds}; HttpOnly; "
        f"SameSite=Strict{secure}",
    )


def drop_cookie(response: Response, scope: Scope) -> None:
    set_cookie(response, scope, "", 0)
