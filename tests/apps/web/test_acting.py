"""What forms may do, and what they are asked before."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from holdfast.apps.web.page import Action, as_command
from holdfast.apps.web.pages.all import NODE_PAGES
from holdfast.apps.web.pages.broker import BROKER_PAGES
from holdfast.broker.http.app import broker_routes
from holdfast.node.http.app import node_routes
from holdfast.rules import limits
from support.command_words import parses
from support.console import ConsoleInThread, console_up
from support.daemon import make_home


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("acting") / "home")) as found:
        yield found


def meshes(console: ConsoleInThread) -> list[str]:
    return [row.slug for row in console.up.daemon.api.node.meshes()]


def test_U5_a_form_does_what_its_command_does_and_the_next_page_says_so_once(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    done = browser.do("mesh.create", at="/meshes", slug="board")
    assert (done.status, done.leads_to) == (303, "/meshes")
    assert "board" in meshes(console)
    assert "The mesh board is made." in (said := browser.get("/meshes").text)
    assert "holdfast mesh create board" in said
    assert "The mesh board is made." not in browser.get("/meshes").text


def test_U5_what_is_refused_is_said_and_what_was_filled_in_stays(console: ConsoleInThread) -> None:
    browser = console.browser()
    taken = browser.do("mesh.create", at="/meshes", slug="team")
    assert taken.status == 409
    assert "exists already" in taken.text
    assert 'name="slug" required value="team"' in taken.text
    empty = browser.do("mesh.create", at="/meshes", slug="")
    assert (empty.status, "slug is missing" in empty.text) == (400, True)
    odd = browser.do("token.add", at="/settings", name="x", days="soon")
    assert (odd.status, "give a whole number" in odd.text) == (400, True)
    for digits in (19, 5_000):
        huge = browser.do("token.add", at="/settings", name="x", days="9" * digits)
        assert (huge.status, "give a smaller number" in huge.text) == (400, True)


def test_U5_what_was_done_is_done_wherever_its_form_says_it_came_from(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    done = browser.do("mesh.create", at="/meshes?x=€", slug="euro")
    assert (done.status, done.leads_to) == (303, "/")
    assert "euro" in meshes(console)


def test_U5_a_form_without_the_token_of_its_session_does_nothing(console: ConsoleInThread) -> None:
    browser, other = console.browser(), console.browser()
    for token in ("", "x", "é", other.token()):
        form = {"form_token": token, "slug": "forged", "at": "/"}
        assert browser.post("/do/mesh.create", form).status == 403
    form = {"form_token": browser.token(), "slug": "forged", "at": "/"}
    assert browser.post("/do/mesh.create", form, origin="https://evil.example").status == 403
    assert browser.post("/do/mesh.create", form, origin="").status == 403
    assert browser.post("/do/nothing", form).status == 404
    assert console.stranger().post("/do/mesh.create", form).status == 303
    plain = {"content-type": "text/plain"}
    assert browser.post("/do/mesh.create", form, **plain).status == 400
    assert "forged" not in meshes(console)


def test_U5_a_token_that_reads_has_no_buttons_and_is_refused(console: ConsoleInThread) -> None:
    trust = console.up.daemon.api.trust
    reading = console.browser(trust.add_token("reader", reads=["*"]))
    for path in ("/", "/meshes", "/meshes/team", "/topology", "/log", "/settings"):
        page = reading.get(path)
        assert page.status == 200, path
        assert 'action="/do/' not in page.text, path
    done = reading.do("mesh.create", at="/meshes", slug="taken")
    assert done.status == 403
    assert "taken" not in meshes(console)
    trust.revoke_token("reader")


def test_U5_what_cannot_be_undone_asks_first(console: ConsoleInThread) -> None:
    trust, browser = console.up.daemon.api.trust, console.browser()
    trust.add_token("old", reads=["*"])
    asked = browser.do("token.revoke", at="/settings", name="old")
    assert asked.status == 200
    assert "Revoke the token old?" in asked.text
    assert "holdfast token revoke old" in asked.text
    assert [row.name for row in trust.tokens()] == ["old"]
    done = browser.do("token.revoke", at="/settings", name="old", sure="yes")
    assert done.leads_to == "/settings"
    assert trust.tokens() == []


def test_U5_a_token_is_shown_once_and_leads_nowhere_else(console: ConsoleInThread) -> None:
    browser = console.browser()
    made = browser.do("token.add", at="//evil.example", name="<i>eyes", reads="team, board")
    assert made.status == 200
    assert "hf_" in made.text
    assert "&lt;i&gt;eyes" in made.text
    assert "<i>eyes" not in made.text
    assert "evil.example" not in made.text
    assert "hf_" not in browser.get("/settings").text.replace("hf_form", "")
    (row,) = console.up.daemon.api.trust.tokens()
    assert (row.scope, row.reads) == ("read", ("board", "team"))


def test_U5_a_form_that_is_too_large_is_refused(console: ConsoleInThread) -> None:
    browser = console.browser()
    form = {"form_token": browser.token(), "slug": "x" * limits.BODY_BYTES_MAX}
    assert browser.post("/do/mesh.create", form).status == 413


def test_U5_a_command_is_quoted_for_a_shell() -> None:
    command = "holdfast token add {name}[ --days {days}] {--reads reads}"
    said = as_command(command, {"name": "a; rm -rf /", "reads": "* team", "days": ""})
    assert said == "holdfast token add 'a; rm -rf /' --reads '*' --reads team"
    assert as_command(command, {}) == "holdfast token add NAME"


CHOSEN = {"kept": "int8", "grants": "read send", "kind": "--json-value"}
"""What a command takes of a few; anything else may be a number."""
ACTIONS = {one.name: one for page in (*NODE_PAGES, *BROKER_PAGES) for one in page.actions}
NAMES = (re.findall(r"[{ ](\w+)\}", one.command) for one in ACTIONS.values())
SHOWN = {name: CHOSEN.get(name, "7") for names in NAMES for name in names}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_U5_an_action_asks_first_or_can_be_undone_and_has_a_command(action: Action) -> None:
    assert action.asks or action.undone, "say how it is taken back, or let it ask"
    if re.fullmatch(r"[a-z_]+\.[a-z_]+", action.undone):
        assert action.undone in ACTIONS, "what undoes it is there"
    for command in action.command.split(" | "):
        words = shlex.split(as_command(command, SHOWN))
        if words[0] == "curl":
            continue  # an operator's call that has no command of its own
        assert words[0] == "holdfast"
        parses([word for word in words[1:] if word])


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_U5_an_action_calls_what_is_there_with_a_document_where_one_is_asked_for(
    action: Action,
) -> None:
    method, path = action.address(dict.fromkeys(re.findall(r"\{(\w+)\}", action.call), "7"))
    routes = broker_routes() if action.name.startswith("broker.") else node_routes()
    scope = {"type": "http", "method": method, "path": path}
    found = [
        one
        for one in routes
        if one.method == method
        and StarletteRoute(one.path, lambda request: None).matches(scope)[0] != Match.NONE
    ]
    assert found, f"there is no {action.call}"
    # The first one is the call: that is how they are found.
    assert (found[0].request is not None) == (action.has_body or action.takes_file)
    known = getattr(found[0].request, "__struct_encode_fields__", None)
    sent = {one.name or name for name, one in action.fields.items() if one.where == "body"}
    if known is not None:
        assert sent | set(action.fixed or ()) <= set(known)
