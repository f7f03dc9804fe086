"""What every page of the console keeps: headers, forms, and nothing of strangers that runs."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import quote, urlencode

import pytest

from holdfast.apps.web.page import ConsolePage
from holdfast.apps.web.pages import settings
from holdfast.apps.web.pages.all import NODE_PAGES
from holdfast.rules import limits
from support.console import Browser, ConsoleInThread, console_up
from support.daemon import PATIENCE_S, make_home
from support.waiting import until


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("site") / "home")) as found:
        yield found


def test_U5_every_answer_lets_a_browser_run_only_what_is_ours(console: ConsoleInThread) -> None:
    browser = console.browser()
    style = browser.get("/").text.partition('href="/static/console.css')[2].partition('"')[0]
    for path in ("/", "/login", "/nothing", f"/static/console.css{style}"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    assert browser.get("/").headers["cache-control"] == "no-store"
    text = browser.get("/").text
    assert "<style" not in text
    assert " style=" not in text
    assert "<script>" not in text


def test_U5_a_page_of_another_origin_or_host_gets_nothing(console: ConsoleInThread) -> None:
    browser = console.browser()
    assert browser.get("/", host="evil.example").status == 421
    assert browser.get("/", origin="https://evil.example").status == 403
    form = {"form_token": browser.token()}
    assert browser.post("/logout", form, origin="null").status == 403
    assert browser.post("/logout", form, **{"sec-fetch-site": "same-site"}).status == 403
    assert browser.post("/logout", form, origin="").status == 403
    kind = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
    plain = browser.ask("POST", "/logout", body=urlencode(form).encode(), headers=kind)
    assert plain.status == 403
    assert browser.get("/").status == 200


def test_U5_a_page_that_is_not_there_says_so_in_the_words_of_who_asks(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    lost = browser.get("/nothing/<script>alert(1)</script>")
    assert lost.status == 404
    assert "<script>alert" not in lost.text
    assert browser.get("/nothing", accept="application/json").text.startswith('{"error"')
    assert browser.get("/static/../site.py").status in (400, 404)
    assert browser.get("/static/%2e%2e%2fsite.py").status == 404
    assert browser.get("/?" + "x" * 20_000).status == 400
    assert browser.ask("DELETE", "/", headers={"accept": "text/html"}).status == 405
    wrong = browser.ask("PUT", "/", headers={})
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
    assert browser.ask("PUT", "/nothing", headers={}).status == 404
    assert browser.ask("GET", "/logout", headers={}).status == 404


def test_U5_the_first_page_is_small(console: ConsoleInThread) -> None:
    browser = console.browser()
    page = browser.get("/")
    sizes = [len(page.text)]
    for part in page.text.split('"/static/')[1:]:
        address = "/static/" + part.partition('"')[0]
        answer = browser.get(address, **{"accept-encoding": "identity"})
        assert "immutable" in answer.headers["cache-control"]
        sizes.append(len(answer.text))
    assert sum(sizes) < 100_000, sizes


@contextmanager
def live(browser: Browser, at: str) -> Iterator[http.client.HTTPResponse]:
    """The answer to a page that asks for its live parts."""
    line = http.client.HTTPConnection(browser.address.removeprefix("http://"), timeout=PATIENCE_S)
    line.request("GET", f"/live?at={quote(at, safe='')}", headers={"cookie": browser.cookie})
    with closing(line), closing(line.getresponse()) as answer:
        yield answer


def until_told(answer: http.client.HTTPResponse, text: str) -> str:
    """What a stream sends, up to and with a text."""
    said = b""
    while text.encode() not in said:
        part = answer.read1(65536)
        assert part, said.decode()[-400:]
        said += part
    return said.decode()


def test_U5_sessions_share_live_parts_but_not_the_tokens_of_their_forms(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is made once: with a mark in it, in whose place each session gets its own token."""
    made = ConsolePage(
        path="/formed",
        title="Formed",
        template="settings.html",
        load=settings.settings,
        live=("content",),
    )
    monkeypatch.setattr("holdfast.apps.web.pages.all.NODE_PAGES", (*NODE_PAGES, made))
    with console_up(make_home(tmp_path_factory.mktemp("formed") / "home")) as console:
        one, two = console.browser(), console.browser()
        assert one.token() != two.token()
        for browser in (one, two):
            with live(browser, "/formed") as answer:
                said = until_told(answer, "</hx-partial>")
            assert f'name="form_token" value="{browser.token()}"' in said
            other = two if browser is one else one
            assert other.token() not in said


def test_U5_a_stream_ends_with_its_session_and_is_nobodys_without_one(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    with live(browser, "/log") as answer:
        until_told(answer, "live-rows")
        browser.post("/logout", {"form_token": browser.token()})
        console.up.daemon.api.node.mesh("team").state.set("secret", "not for who has gone")
        assert "not for who has gone" not in until_told(answer, "event: gone")
    other = console.browser()
    for who, at, status in (
        (browser, "/log", 401),
        (other, "/settings", 404),  # nothing is live there
        (other, "//evil.example", 200),  # the first page, and nothing else
    ):
        with live(who, at) as answer:
            assert answer.status == status, at


def test_U5_open_pages_are_limited_and_a_page_without_its_stream_is_shown(
    console: ConsoleInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert console.up.daemon.api.gate.most["console"] == limits.CONSOLE_STREAMS_MAX
    monkeypatch.setitem(console.up.daemon.api.gate.most, "console", 1)
    browser = console.browser()
    with live(browser, "/log") as answer:
        until_told(answer, "live-rows")
        with live(browser, "/log") as refused:
            assert refused.status == 429
        assert browser.get("/log").status == 200


def test_U5_a_token_does_not_take_the_places_of_others_nor_all_tokens_those_of_the_user(
    console: ConsoleInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_STREAMS_OF_TOKEN_MAX", 2)
    monkeypatch.setattr(limits, "CONSOLE_STREAMS_OF_TOKENS_MAX", 3)
    trust = console.up.daemon.api.trust
    greedy, other = (
        console.browser(trust.add_token(name, reads=["*"])) for name in ("greedy", "other")
    )
    own = console.browser()

    def look(who: Browser) -> int:
        answer = opened.enter_context(live(who, "/log"))
        if answer.status == 200:
            until_told(answer, "live-rows")
        return answer.status

    with ExitStack() as opened:
        assert [look(who) for who in (greedy, greedy, greedy)] == [200, 200, 429]
        assert greedy.get("/log").status == 200
        assert [look(who) for who in (other, other, greedy)] == [200, 429, 429]
        assert [look(own) for _ in range(4)] == [200] * 4
    # What was closed makes room.
    until(lambda: look_again(greedy))


def look_again(who: Browser) -> bool:
    with live(who, "/log") as answer:
        return answer.status == 200


def test_U5_no_file_but_those_of_the_console_is_found_by_any_name(
    console: ConsoleInThread,
) -> None:
    stranger = console.stranger()
    assert stranger.get("/static/console.js").status == 200
    names = ("a" * 300 + ".js", "a%00.js", "..%2fpage.js", "%2fetc%2fhosts.js", ".js", "", "NOTICE")
    for name in names:
        assert stranger.get(f"/static/{name}").status == 404, name


def test_U5_what_stays_open_is_no_answer_to_head(console: ConsoleInThread) -> None:
    asked = console.browser().ask("HEAD", "/live?at=/", headers={"accept": "*/*"})
    assert (asked.status, asked.headers["allow"]) == (405, "GET")
