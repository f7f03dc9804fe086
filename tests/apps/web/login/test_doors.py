"""Who gets into the console, and who does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.apps.web.login.codes import Codes
from holdfast.apps.web.login.sessions import BrowserSessions
from holdfast.apps.web.view import Proof
from holdfast.rules import limits
from holdfast.rules.errors import BadToken
from support.console import Browser, ConsoleInThread, console_up
from support.daemon import make_home


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("doors") / "home")) as found:
        yield found


class Clock:
    """A clock and a source of random bytes that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.drawn = 0

    def now_ms(self) -> int:
        return self.ms

    def random(self, count: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(count, "big")


def test_U5_a_stranger_is_led_to_the_login_and_a_program_is_told(console: ConsoleInThread) -> None:
    stranger = console.stranger()
    led = stranger.get("/meshes/team?x=1")
    assert (led.status, led.leads_to) == (303, "/login?next=/meshes/team%3Fx%3D1")
    assert stranger.get("/", accept="application/json").status == 200
    assert "/openapi.json" in stranger.get("/", accept="application/json").text
    assert stranger.get("/live?at=/", accept="*/*").status == 401


def test_U5_a_code_logs_in_once_and_sets_a_cookie_that_no_script_reads(
    console: ConsoleInThread,
) -> None:
    code = console.code()
    first = console.stranger()
    done = first.log_in(code=code)
    assert (done.status, done.leads_to) == (303, "/")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Overview" in first.get("/").text
    again = console.stranger().log_in(code=code)
    assert again.status == 401
    assert "used already" in again.text


def test_U5_codes_are_for_the_unix_socket_alone(console: ConsoleInThread) -> None:
    assert console.stranger().post("/login/code", {}).status == 403
    assert console.browser().post("/login/code", {}).status == 403


def test_U5_an_old_code_is_refused_and_many_codes_make_room() -> None:
    clock = Clock()
    codes = Codes(clock.now_ms, clock.random)
    old = codes.make()
    clock.ms += limits.CONSOLE_CODE_MS
    with pytest.raises(BadToken):
        codes.use(old)
    made = [codes.make() for _ in range(limits.CONSOLE_CODES_MAX + 1)]
    with pytest.raises(BadToken):
        codes.use(made[0])
    codes.use(made[1])


def test_U5_a_read_token_sees_and_does_not_touch(console: ConsoleInThread) -> None:
    reading = console.browser(console.up.daemon.api.trust.add_token("eyes", reads=["*"]))
    text = reading.get("/").text
    assert "reads only" in text
    assert "/v1/status" not in text
    own = console.browser().get("/").text
    assert "reads only" not in own


def test_U5_a_token_that_is_dropped_ends_its_session(console: ConsoleInThread) -> None:
    trust = console.up.daemon.api.trust
    reading = console.browser(trust.add_token("gone", reads=["*"]))
    assert reading.get("/").status == 200
    trust.revoke_token("gone")
    led = reading.get("/")
    assert (led.status, led.leads_to) == (303, "/login?why=ended&next=/")
    assert reading.cookie.endswith("=")


@pytest.mark.parametrize("token", ["", "hf_none", "a b", "é", "x\r\ny: z"])
def test_U5_what_is_no_token_is_refused(console: ConsoleInThread, token: str) -> None:
    refused = console.stranger().log_in(token=token)
    assert refused.status == 401
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize(
    "cookie", ["", "stolen", "a=b; {name}=x", "{name}=x; {name}={value}", "other={value}"]
)
def test_U5_a_cookie_that_is_not_the_one_given_is_nobody(
    console: ConsoleInThread, cookie: str
) -> None:
    browser = console.browser()
    name, _, value = browser.cookie.partition("=")
    other = Browser(browser.address, cookie=cookie.format(name=name, value=value))
    assert other.get("/").status == 303


def test_U5_who_has_logged_out_is_out_with_every_copy_of_the_cookie(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    stolen = Browser(browser.address, cookie=browser.cookie)
    assert browser.post("/logout", {"form_token": "x"}).status == 403
    assert stolen.get("/").status == 200
    browser.post("/logout", {"form_token": browser.token()})
    assert stolen.get("/").status == 303


def test_U5_a_login_leads_to_no_other_place(console: ConsoleInThread) -> None:
    long = "/" + "a" * limits.CONSOLE_QUERY_CHARS_MAX
    foreign = ("//evil.example", "https://evil.example/", "/\\evil.example", "", "x")
    for next in (*foreign, "/é", "/€", "/\u202e", long):
        browser = console.stranger()
        done = browser.post("/login", {"code": console.code(), "next": next})
        assert done.leads_to == "/", next


def test_U5_sessions_end_are_limited_and_outlive_a_restart(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "console.json"
    sessions = BrowserSessions(path, clock.now_ms, clock.random)
    first = sessions.begin(Proof("tcp", "hf_secret"))
    assert b"hf_secret" not in path.read_bytes()
    assert first.encode() not in path.read_bytes()
    again = BrowserSessions(path, clock.now_ms, clock.random).find(first)
    assert again is not None
    assert again.proof == Proof("tcp", "hf_secret")
    for _ in range(limits.CONSOLE_SESSIONS_MAX):
        last = sessions.begin(Proof("tcp", "hf_secret"))
    assert sessions.find(first) is None
    assert sessions.find(last) is not None
    clock.ms += limits.CONSOLE_SESSION_MS
    assert sessions.find(last) is None


def test_U5_a_token_that_logs_in_again_and_again_throws_nobody_else_out(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "console.json"
    sessions = BrowserSessions(path, clock.now_ms, clock.random)
    own = sessions.begin(Proof.own(), "local:")
    other = sessions.begin(Proof("tls", "hf_b"), "token:b")
    greedy = [
        sessions.begin(Proof("tls", "hf_a"), "token:a") for _ in range(limits.CONSOLE_SESSIONS_MAX)
    ]
    again = BrowserSessions(path, clock.now_ms, clock.random)
    for found in (sessions, again):
        assert found.find(own) is not None
        assert found.find(other) is not None
        assert found.find(greedy[0]) is None
        assert found.find(greedy[-1]) is not None


def test_U5_a_login_is_kept_with_who_has_logged_in(console: ConsoleInThread) -> None:
    token = console.up.daemon.api.trust.add_token("many", reads=["team"])
    console.browser()
    console.browser(token)
    console.browser(token)
    rows = json.loads((console.up.home / "console.json").read_bytes())
    assert [row["whose"] for row in rows[-3:]] == ["local:", "token:many", "token:many"]


def test_U5_a_damaged_file_of_sessions_is_none(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "console.json"
    secret = BrowserSessions(path, clock.now_ms, clock.random).begin(Proof("tcp", "hf_x"))
    good = path.read_bytes()
    for raw in (b"", b"[1]", b"\xff", good.replace(b'"sealed":"', b'"sealed":"AAAA')):
        path.write_bytes(raw)
        assert BrowserSessions(path, clock.now_ms, clock.random).find(secret) is None
