"""Values as large as they may be: every page stays small, says how large they are, and names where
the whole is. What is larger, as a file of 10 MB, is shown a part at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.apps.web.pages.all import NODE_PAGES
from holdfast.node.core.intake import Intake
from holdfast.rules.limits import ENTITY_BYTES_MAX, MESSAGE_BYTES_MAX, VALUE_BYTES_MAX
from support import envelopes as e
from support.console import Browser, ConsoleInThread, console_up
from support.daemon import UnixConnection, make_home

VALUE = "<b>v" * (VALUE_BYTES_MAX // 4 - 10)
FILE_BYTES = 10_000_000
PAGE_BYTES_MAX = 120_000
"""A page of a hundred rows, or with a part of a file, has fewer."""
ASKED = {
    "/meshes/{mesh}/value": "key=k",
    "/meshes/{mesh}/past": "at=offset:2&show=all",
    "/meshes/{mesh}/past/key": "key=k&at=offset:2",
    "/meshes/{mesh}/memory": "",
    "/meshes/{mesh}/remembered": "key=m",
    "/meshes/{mesh}/file": "path=f",
    "/meshes/{mesh}/entities": "type=mission",
}
"""What pages are asked that show nothing unasked."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    home = make_home(tmp_path_factory.mktemp("largest") / "home")
    with holdfast.open(home, sync="normal") as node:
        team = node.mesh("team")
        for _ in range(2):
            team.state.set("k", VALUE)
            team.state.set("j", [VALUE[:-20]])
            team.memory.set("m", VALUE)
        team.files.share("f", b"a line\n" * (FILE_BYTES // 7))
        model = holdfast.Model(provider="p", name="m", dim=2)
        team.vectors.store("v", [1.0, 0.0], model=model, content=VALUE[:60_000])
        team.tasks.create("t" * 1000, description="d" * 10_000)
        node.apply([e.state_set("k", "theirs", lamport=5_000, origin="bob")])
    with console_up(home) as found:
        engine = found.up.daemon.api.engine
        body = VALUE[:MESSAGE_BYTES_MAX].encode()
        raw = e.message_send("topic", "news", body, lamport=9_000, content_type="text/plain")
        engine.store.write(Intake(engine.ctx, [raw], delivered={raw: b"B" * 16}))
        line = UnixConnection(found.up.unix.removeprefix("unix:"))
        line.request("POST", "/v1/meshes/team/quorum/init", body=b"{}")
        assert line.getresponse().status == 201
        line.close()
        with holdfast.connect(found.up.unix) as far:
            large = {"title": "large", "says": VALUE[: ENTITY_BYTES_MAX - 1000]}
            far.mesh("team").entities.put("mission", "x", large)
        yield found


def addresses(console: ConsoleInThread) -> list[str]:
    """Every page of a node, with what is largest on it."""
    node = console.up.daemon.api.node
    (message,), (task,) = node.inbox.list(), node.mesh("team").tasks.list()
    named = {
        "mesh": "team",
        "id:path": "x",
        "type": "mission",
        "task": task.task,
        "id": message.id,
        "offset": "1",
    }
    found = []
    for page in NODE_PAGES:
        path = page.path
        for name, value in named.items():
            path = path.replace(f"{{{name}}}", value)
        assert "{" not in path, f"say what stands in {page.path}"
        asked = ASKED.get(page.path)
        found.append(path if asked is None else f"{path}?{asked}")
    return found


def test_U5_every_page_is_small_whatever_it_shows(console: ConsoleInThread) -> None:
    browser = console.browser()
    for address in addresses(console):
        shown = browser.get(address)
        assert shown.status == 200, (address, shown.text[:300])
        assert len(shown.text) < PAGE_BYTES_MAX, (address, len(shown.text))
        assert "<b>v" not in shown.text, address


def test_U5_a_page_says_how_large_a_value_is_and_names_where_the_whole_is(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    said = f"{len(VALUE):,}".replace(",", "\N{THIN SPACE}")
    value = browser.get("/meshes/team/remembered?key=m").text
    assert f"{said} characters; cut." in value
    assert "Show all of it" in value
    whole = browser.get("/meshes/team/remembered?key=m&whole=yes").text
    assert whole.count("&lt;b&gt;v") > len(VALUE) // 4 - 10
    then = browser.get("/meshes/team/past/key?key=k&at=offset:1").text
    assert f"{said} characters; cut." in then
    assert "too large for a form" in then
    assert "holdfast state get k --as-of offset:1 --mesh team | holdfast state set k -" in then
    file = browser.get("/meshes/team/file?path=f").text
    assert "9.5 MiB" in file
    assert "More of it" in file
    assert "holdfast file read f" in file
    (message,) = console.up.daemon.api.node.inbox.list()
    assert "characters; cut." in browser.get(f"/inbox/{message.id}").text


def test_U5_what_a_form_may_not_carry_is_refused_and_the_page_stays(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    head = console.up.daemon.api.node.log.head().offset
    at = "/meshes/team/value?key=k"
    large = "x" * 2 * VALUE_BYTES_MAX
    for value in (large, json.dumps([large])):
        refused = browser.do("state.set_text", at=at, mesh="team", key="n", value=value)
        assert refused.status in (400, 413)
        assert len(refused.text) < PAGE_BYTES_MAX + len(value), "with what was filled in, once"
    assert send_ten_megabytes(browser) == 413
    assert console.up.daemon.api.node.log.head().offset == head


def send_ten_megabytes(browser: Browser) -> int:
    return browser.do("state.set_text", mesh="team", key="n", value="x" * FILE_BYTES).status
