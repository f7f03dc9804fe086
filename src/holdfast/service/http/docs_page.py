"""`/docs`: every call on one page, for people. It needs no script and no other host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any, Final, Protocol

from starlette.responses import Response

from holdfast import __version__
from holdfast.service.http.openapi import openapi_path, refusals
from holdfast.service.http.request import Request
from holdfast.service.http.route import Route

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8886; padding: .5rem 0 1rem; }
h2 { font-size: 1rem; margin: .5rem 0; } h2 code { font-size: 1.05rem; }
pre { background: #8882; padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; }
table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
.who { font-size: .85rem; opacity: .75; }
"""


def routes() -> list[Route]:
    return [
        Route(
            "GET",
            "/docs",
            _page,
            "This API, for people.",
            answers={200: "text/html"},
            public=True,
        )
    ]


async def _page(call: Request[Any]) -> Response:
    pages = call.api.pages
    if "docs" not in pages:
        pages["docs"] = page(call.api.routes, call.api).encode()
    return Response(
        pages["docs"],
        media_type="text/html",
        headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


class Described(Protocol):
    """What a page says of the service besides its calls."""

    intro: str
    """Who may call, and by what."""

    @property
    def title(self) -> str: ...
    def reader_of(self, route: Route) -> tuple[str, str]:
        """Who makes a call that is neither everybody's nor this machine's own, and which secret
        goes with it over TCP; none if the Unix socket will do.
        """


def page(routes: Iterable[Route], api: Described) -> str:
    peer = api.title
    calls = "".join(
        _section(route, api) for route in sorted(routes, key=lambda r: (r.path, r.method))
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Holdfast: {escape(peer)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(peer)}</h1><p>What it answers (Holdfast {escape(__version__)}). "
        f'For programs: <a href="/openapi.json">openapi.json</a>. {api.intro} Every '
        'error is <code>{"error": {"code", "message", "hint"}}</code>.</p>'
        f"{calls}</body></html>\n"
    )


def _section(route: Route, api: Described) -> str:
    path = openapi_path(route)
    rows = "".join(
        f"<tr><td><code>{escape(param.name)}</code></td><td>{escape(param.summary)}</td></tr>"
        for param in route.params
    )
    codes = ", ".join(f"{error.http_status} {error.code}" for error in refusals(route))
    return (
        f'<section id="{escape(_anchor(route))}">'
        f"<h2><code>{route.method} {escape(path)}</code></h2>"
        f"<p>{escape(route.summary)} <span class=who>{escape(_who(route, api))}</span></p>"
        f"{f'<table>{rows}</table>' if rows else ''}"
        f"<pre>{escape(curl(route, _secret(route, api)))}</pre>"
        f"<p class=who>Refused with: {escape(codes)}</p></section>"
    )


def curl(route: Route, secret: str = "") -> str:
    """An example that can be pasted, once the words in capitals are replaced. A call that needs a
    secret on the Unix socket too is shown as it goes over TCP.
    """
    path = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), openapi_path(route))
    socket = [] if secret else ["--unix-socket api.sock"]
    words = ["curl", *socket]
    if route.kind == "stream":
        words.append("-N")
    if route.method != "GET":
        words.append(f"-X {route.method}")
    if secret:
        words.append(f"-H 'Authorization: Bearer {secret}'")
    words.append(f"http://{'HOST:PORT' if secret else 'holdfast'}{path}")
    return " ".join([*words, *filter(None, [route.example])])


def _secret(route: Route, api: Described) -> str:
    return "" if route.public or route.local_only else api.reader_of(route)[1]


def _who(route: Route, api: Described) -> str:
    if route.public:
        return "(anybody)"
    return "(this machine's own user)" if route.local_only else f"({api.reader_of(route)[0]})"


def _anchor(route: Route) -> str:
    return f"{route.method}{openapi_path(route)}".replace("/", "-").lower()
