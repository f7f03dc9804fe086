"""Every page and every action of both consoles, in a real browser, on a live demo.

What there is to visit follows from the declarations and from the forms that pages show: a page, an
action, a form or a key that nobody has visited fails the test. So does anything that is logged as
an error or asked outside (`tab`), and whatever axe calls serious. Screenshots stand in
`.venv/browser/pictures`.

It is one test, since its parts need one demo, and the order in which things are done and undone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, Request, Response, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from holdfast.apps.demo.stage import DemoStage
from holdfast.apps.web.page import Action, ConsolePage
from holdfast.apps.web.pages.all import NODE_PAGES
from holdfast.apps.web.pages.broker import BROKER_PAGES
from holdfast.rules.ids import parse_id
from support.browser import PATIENCE_MS, chromium, hard_to_use, picture, tab
from support.live_demo import ask, live_demo, up_of

PAGES: Final = {"node": NODE_PAGES, "broker": BROKER_PAGES}
LOOKS: Final = (("light", (1280, 800)), ("dark", (1280, 800)), ("light", (390, 844)))
_FORMS: Final = """() => [...document.querySelectorAll("main form")].map((form) => ({
  method: form.method,
  action: new URL(form.getAttribute("action") ?? location.pathname, location.href).pathname,
  others: [...form.querySelectorAll("[formaction]")].map((one) => one.getAttribute("formaction")),
  fields: [...form.querySelectorAll("input:not([type=hidden], [type=checkbox]), select")]
    .map((one) => one.name),
}))"""


@dataclass
class Walk:
    """What was seen, and what of it was visited."""

    browser: Browser
    stage: DemoStage
    visited: set[tuple[str, str]] = field(default_factory=set)
    """Kind and path of pages."""
    done: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of actions that came to something."""
    forms: set[tuple[str, str, str]] = field(default_factory=set)
    """Kind, page, and what a form of it does: an action, or `search` and its fields."""
    sent: set[tuple[str, str, str]] = field(default_factory=set)
    keys: set[tuple[str, str]] = field(default_factory=set)
    pressed: set[tuple[str, str]] = field(default_factory=set)
    commands: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, peer: str, path: str, **how: Any) -> Iterator[Page]:
        """A tab at the console of a laptop, or of the broker; all that happens in it counts."""
        kind = "broker" if peer == "broker" else "node"
        with tab(self.browser, up_of(self.stage, peer), **how) as page:
            page.on("request", lambda request: self._asked(kind, request))
            page.on("response", lambda response: self._answered(kind, response))
            go(page, path)
            yield page

    def look(self, kind: str, page: Page) -> None:
        """Takes down which forms a page shows."""
        here = page_of(kind, page.url)
        if here is None:
            return
        for form in page.evaluate(_FORMS):
            if form["method"] == "get":
                self.forms.add((kind, here.path, searches(form["fields"])))
                continue
            for action in (form["action"], *form["others"]):
                self.forms.add((kind, here.path, action.removeprefix("/do/")))

    def _asked(self, kind: str, request: Request) -> None:
        at = urlsplit(request.url)
        found = page_of(kind, request.url)
        if request.method == "GET" and request.is_navigation_request() and found is not None:
            self.visited.add((kind, found.path))
            self.sent.add((kind, found.path, searches(parse_qs(at.query, True))))

    def _answered(self, kind: str, response: Response) -> None:
        request, at = response.request, urlsplit(response.url)
        if request.method != "POST" or not at.path.startswith("/do/") or response.status >= 400:
            return
        action = named(kind, at.path.removeprefix("/do/"))
        is_sure = "sure=yes" in (request.post_data or "")
        here = page_of(kind, request.headers.get("referer", ""))
        if here is not None:
            self.sent.add((kind, here.path, action.name))
        if is_sure or not action.asks:
            self.done.add((kind, action.name))

    def left(self) -> list[str]:
        """What there is, and nobody has visited."""
        pages = {(kind, page.path) for kind in PAGES for page in PAGES[kind]}
        actions = {
            (kind, one.name) for kind in PAGES for page in PAGES[kind] for one in page.actions
        }
        searched = [(kind, path, set(what.split())) for kind, path, what in self.sent]
        unsent = {
            (kind, path, what)
            for kind, path, what in self.forms - self.sent
            if not any(
                (kind, path) == at[:2] and what.startswith("search") and set(what.split()) <= at[2]
                for at in searched
            )
        }
        keys = {(kind, page.key) for kind in PAGES for page in PAGES[kind] if page.key}
        return [
            *(f"page {one}" for one in sorted(pages - self.visited)),
            *(f"action {one}" for one in sorted(actions - self.done)),
            *(f"form {one}" for one in sorted(unsent)),
            *(f"key {one}" for one in sorted(keys - self.pressed)),
        ]


def searches(fields: Sequence[str] | dict[str, Any]) -> str:
    return " ".join(["search", *sorted(set(fields))])


def page_of(kind: str, url: str) -> ConsolePage | None:
    path = urlsplit(url).path
    found = [page for page in PAGES[kind] if re.fullmatch(_pattern(page.path), path)]
    return max(found, key=lambda page: len(re.sub(r"\{.*?\}", "", page.path)), default=None)


def _pattern(path: str) -> str:
    parts = re.split(r"(\{.*?\})", path)
    return "".join(
        (".+" if part.endswith(":path}") else "[^/]+") if part[:1] == "{" else re.escape(part)
        for part in parts
    )


def named(kind: str, name: str) -> Action:
    return next(one for page in PAGES[kind] for one in page.actions if one.name == name)


def go(page: Page, path: str) -> None:
    parts = urlsplit(page.url)
    page.goto(f"{parts.scheme}://{parts.netloc}{path}")
    unfold(page)


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


# --- looking at every page ---------------------------------------------------------------------


def addresses(stage: DemoStage) -> dict[str, dict[str, str]]:
    """Where each page is seen with something on it, by kind and path."""
    (task, *_) = ask(stage, "ana", "GET", "/v1/meshes/garden/tasks")["items"]
    (message, *_) = ask(stage, "ana", "GET", "/v1/inbox")["messages"]
    node = {
        "/meshes/{mesh}": "/meshes/plans",
        "/meshes/{mesh}/state": "/meshes/garden/state",
        "/meshes/{mesh}/value": "/meshes/garden/value?key=build/main",
        "/meshes/{mesh}/past": "/meshes/garden/past?at=offset:2",
        "/meshes/{mesh}/past/key": "/meshes/garden/past/key?key=gate&at=offset:2",
        "/meshes/{mesh}/memory": "/meshes/garden/memory",
        "/meshes/{mesh}/remembered": "/meshes/garden/remembered?peer=ana&key=taste",
        "/meshes/{mesh}/files": "/meshes/garden/files",
        "/meshes/{mesh}/file": "/meshes/garden/file?path=notes/long.txt",
        "/meshes/{mesh}/vectors": "/meshes/garden/vectors",
        "/meshes/{mesh}/tasks": "/meshes/garden/tasks",
        "/meshes/{mesh}/tasks/{task}": f"/meshes/garden/tasks/{task['task']}",
        "/meshes/{mesh}/order": "/meshes/fleet/order",
        "/meshes/{mesh}/entities": "/meshes/fleet/entities?type=mission",
        "/meshes/{mesh}/entities/{type}/{id:path}": "/meshes/fleet/entities/mission/dive",
        "/inbox/{id}": f"/inbox/{message['id']}",
        "/log/{offset}": "/log/1",
    }
    broker = {
        "/meshes/{mesh}": "/meshes/plans",
        "/meshes/{mesh}/queues/{queue:path}": "/meshes/plans/queues/night",
    }
    known = {"node": node, "broker": broker}
    return {
        kind: {page.path: known[kind].get(page.path, page.path) for page in pages}
        for kind, pages in PAGES.items()
    }


def look_at_everything(walk: Walk) -> list[str]:
    """What is wrong with pages, in the light and in the dark, wide and narrow."""
    wrong: list[str] = []
    places = addresses(walk.stage)
    for scheme, size in LOOKS:
        for kind, peer in (("node", "ana"), ("broker", "broker")):
            with walk.open(peer, "/", scheme=scheme, size=size) as page:
                for path, address in places[kind].items():
                    go(page, address)
                    wrong += [f"{scheme} {size[0]} {path}: {one}" for one in faults(page)]
                    name = re.sub(r"\W+", "-", path).strip("-") or "overview"
                    picture(page, f"{kind}-{name}-{scheme}-{size[0]}")
                    if (scheme, size) == LOOKS[0]:
                        walk.look(kind, page)
                        search(page, address)
    return wrong


def search(page: Page, address: str) -> None:
    """Sends each form of a page that only asks."""
    forms = page.locator("main form[method=get]")
    for number in range(forms.count()):
        with page.expect_navigation():
            forms.nth(number).evaluate("(form) => form.requestSubmit()")
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("body.plain").count() == 0, page.locator("main").inner_text()
        go(page, address)


def faults(page: Page) -> list[str]:
    expect(page.locator("h1")).to_be_visible()
    found = hard_to_use(page)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("wider than the window")
    return found


# --- doing everything --------------------------------------------------------------------------


def press(
    walk: Walk, page: Page, action: str, *, within: str = "main", by: str = "", **fill: str
) -> None:
    """Fills a form in and sends it, by its button or by a script; says yes where it asks; looks
    that it came to something, and that the command is shown that does the same.
    """
    kind = "broker" if action.startswith("broker.") else "node"
    declared = named(kind, action)
    own = f"{within} form[action='/do/{action}']"
    there = page.locator(f"{own}, {within} [formaction='/do/{action}']").first
    expect(there).to_be_attached(timeout=PATIENCE_MS)
    walk.look(kind, page)
    unfold(page)
    is_own = page.locator(own).count() > 0
    form = page.locator(own if is_own else f"{within} form:has([formaction='/do/{action}'])").first
    for name, value in fill.items():
        form.locator(f"[name={name}]").first.fill(value)
    button = "button:not([formaction])" if is_own else f"[formaction='/do/{action}']"
    with page.expect_navigation():
        form.locator(button).first.click()
    sure(walk, page, declared)


def sure(walk: Walk, page: Page, action: Action) -> None:
    """What comes after a form was sent."""
    if action.asks:
        expect(page.locator("input[name=sure]")).to_have_count(1)
        expect(page.locator(".command").first).to_be_visible()
        if action.name not in walk.commands:
            assert not faults(page), action.name
            picture(page, f"asks-{action.name}")
        with page.expect_navigation():
            page.locator("form button").click()
    if action.shows:
        assert not faults(page), action.name
        picture(page, f"shows-{action.name}")
    else:
        told = page.locator(".said, main.plain").all_inner_texts()
        assert page.locator(".said.good").count() == 1, (action.name, told)
    expect(page.locator(".command").first).to_be_visible()
    walk.commands.append(action.name)
    unfold(page)


def share_and_join(walk: Walk) -> None:
    broker = walk.stage.broker
    assert broker is not None
    with walk.open("ana", "/meshes") as page:
        press(walk, page, "mesh.create", slug="shed")
        go(page, "/meshes/own")
        press(walk, page, "mesh.publish", broker=broker.url)
        go(page, "/meshes/plans")
        press(walk, page, "mesh.invite", uses="2", hours="1", grants="read write send")
        invite = page.locator("pre").inner_text()
        for peer in ("cy", "plant"):
            with walk.open(peer, "/meshes") as theirs:
                press(walk, theirs, "mesh.join", invite=invite)
                if peer == "cy":
                    go(theirs, "/meshes/plans")
                    press(walk, theirs, "mesh.leave")
        go(page, "/meshes/plans")
        press(walk, page, "mesh.invite", uses="2", hours="1", grants="read")
        go(page, "/meshes/plans")
        press(walk, page, "mesh.drop_invite")
        plant = "tr:has(th:has-text('plant'))"
        press(walk, page, "mesh.grant", within=plant, grants="read")
        press(walk, page, "mesh.remove_member", within=plant)


def move_the_outbox(walk: Walk) -> None:
    stage = walk.stage
    ask(stage, "bob", "POST", "/v1/meshes/plans/sync/pause")
    with stage.node("bob") as bob:
        id = bob.mesh("plans").send("am I heard?", dm="ana").id

    def refuse(tx: Any) -> None:
        """As a broker does that will never take it."""
        (row,) = tx.outbox_find(parse_id(id))
        why = {"code": "bad_input", "error": "<b>never like this"}
        tx.outbox_put(replace(row, state="dead", attempts=1, ended_at=9, **why))

    with walk.open("bob", "/outbox") as page:
        for action in ("outbox.retry", "outbox.requeue", "outbox.drop"):
            with stage.node("bob") as bob:
                bob._engine.write("test", refuse)
            go(page, "/outbox?state=dead")
            picture(page, "node-outbox-refused")
            press(walk, page, action)
    ask(stage, "bob", "POST", "/v1/meshes/plans/sync/resume")


def pause_and_resume(walk: Walk) -> None:
    with walk.open("ana", "/topology") as page:
        for action in ("link.pause", "link.resume", "mesh.pause", "mesh.resume"):
            press(walk, page, action)


def change_state(walk: Walk) -> None:
    with walk.open("ana", "/meshes/garden/state") as page:
        press(walk, page, "state.set_text", key="colour", value="blue")
        press(walk, page, "state.set", key="shape", value='{"a": [1, 2]}')
        go(page, "/meshes/garden/value?key=colour")
        press(walk, page, "state.set_text", value="red")
        press(walk, page, "state.set", value='{"is": "red"}')
        press(walk, page, "state.delete")
        go(page, "/meshes/garden/past/key?key=gate&at=offset:2")
        go(page, "/meshes/garden/past?at=offset:1&prefix=shape")
        go(page, "/meshes/garden/past/key?key=shape&at=offset:1")
        press(walk, page, "state.delete")
        head = ask(walk.stage, "ana", "GET", "/v1/log")["head"]
        go(page, f"/meshes/garden/past/key?key=shape&at=offset:{head - 1}")
        press(walk, page, "state.restore")


def change_memory(walk: Walk) -> None:
    with walk.open("ana", "/meshes/garden/memory") as page:
        press(walk, page, "memory.set_text", key="town", value="Oslo", tags="one, two")
        press(walk, page, "memory.set", key="list", value="[1, 2]")
        go(page, "/meshes/garden/remembered?peer=ana&key=taste")
        press(walk, page, "memory.restore")
        press(walk, page, "memory.set_text", value="coffee")
        press(walk, page, "memory.set", value='{"or": "tea"}')
        press(walk, page, "memory.forget")


def share_a_file(walk: Walk, folder: Path) -> None:
    content = folder / "ten megabytes.txt"
    content.write_bytes(b"one of very many lines\n" * (10_000_000 // 23))
    with walk.open("ana", "/meshes/garden/files") as page:
        page.set_input_files("input[name=content]", content)
        expect(page.locator("input[name=path]")).to_have_value("ten megabytes.txt")
        press(walk, page, "file.share")
        go(page, f"/meshes/garden/file?path={quote(content.name)}")
        expect(page.locator("main")).to_contain_text("9.5 MiB")
        assert len(page.content()) < 200_000
        assert not faults(page)
        picture(page, "node-file-of-10-MB")
        press(walk, page, "file.delete")


def search_by_meaning(walk: Walk) -> None:
    with walk.open("ana", "/meshes/garden/vectors") as page:
        for key, text in (("sea", "the ship left the harbour"), ("food", "bread and butter")):
            press(walk, page, "vector.store_text", key=key, text=text)
        press(walk, page, "vector.search_text", text="a small boat")
        expect(page.locator("li").first).to_contain_text("the ship left")
        press(walk, page, "vector.delete")
        go(page, "/meshes/garden/vectors")
        press(walk, page, "vector.search", query=str([0.1] * 384))


def move_tasks(walk: Walk) -> None:
    with walk.open("ana", "/meshes/garden/tasks") as page:
        for title in ("mend the roof", "sweep", "paint", "forget"):
            press(walk, page, "task.create", title=title)
        card = ".task:has-text('mend the roof')"
        walk.look("node", page)
        with page.expect_navigation():
            page.drag_and_drop(card, ".lane[data-status=claimed]")
        sure(walk, page, named("node", "task.claim"))
        walk.look("node", page)
        picture(page, "node-board")
        for letter, action in (("r", "task.release"), ("c", "task.claim"), ("d", "task.complete")):
            press_letter(page, card, letter)
            sure(walk, page, named("node", action))
        press(walk, page, "task.cancel", within=".task:has-text('sweep')")
        for title, turns in (
            ("paint", ("claim", "release", "claim", "complete")),
            ("forget", ("cancel",)),
        ):
            page.click(f".task a:has-text('{title}')")
            page.wait_for_url("**/tasks/*")
            for turn in turns:
                press(walk, page, f"task.{turn}")
            go(page, "/meshes/garden/tasks")


def press_letter(page: Page, card: str, letter: str) -> None:
    """Again, if the board was sent anew in between and the card had to be found once more."""
    for patience_ms in (15_000, 15_000, PATIENCE_MS):
        page.locator(card).focus()
        with suppress(PlaywrightTimeout), page.expect_navigation(timeout=patience_ms):
            page.keyboard.press(letter)
            return
    raise AssertionError(f"{letter} did nothing")


def decide(walk: Walk) -> None:
    """At cy, whose writes met newer revisions."""
    with walk.open("cy", "/meshes/fleet/order") as page:
        picture(page, "node-order-to-decide")
        assert not faults(page)
        for action in (
            *("quorum.replay", "writes.keep", "writes.insist"),
            *("order_conflict.keep", "order_conflict.insist"),
            *("quorum.pause", "quorum.resume", "quorum.transfer"),
        ):
            press(walk, page, action)


def settle_conflicts(walk: Walk) -> None:
    with walk.open("ana", "/conflicts") as page:
        press(walk, page, "conflict.restore")
        press(walk, page, "conflict.dismiss")
        for action, many in (("conflict.dismiss_many", 2), ("conflict.restore_many", 1)):
            marks = page.locator("input[type=checkbox][name=number]")
            for number in range(many):
                marks.nth(number).check()
            press(walk, page, action)


def read_and_answer(walk: Walk) -> None:
    with walk.open("ana", "/inbox") as page:
        press(walk, page, "inbox.read")
        page.click("tr.unread a")
        page.wait_for_url("**/inbox/*")
        press(walk, page, "inbox.read")
        press(walk, page, "inbox.reply", body="at noon")


def keep_house(walk: Walk) -> None:
    with walk.open("ana", "/settings") as page:
        press(walk, page, "token.add", name="eyes", reads="*")
        page.click("text=Back to the settings")
        press(walk, page, "token.revoke")
        press(walk, page, "settings.reload")
        go(page, "/consumers")
        press(walk, page, "consumer.retire", within="tr:has-text('audit')")


def operate_the_broker(walk: Walk) -> None:
    with walk.open("broker", "/") as page:
        press(walk, page, "broker.sweep")
        press(walk, page, "broker.repair")
        go(page, "/meshes/plans/queues/night")
        press(walk, page, "broker.revive")
        go(page, "/meshes/plans")
        press(walk, page, "broker.new_epoch", reason="a drill")
        press(walk, page, "broker.remove_member", within="tr:has-text('bob')")


def press_every_key(walk: Walk) -> None:
    for kind, peer in (("node", "ana"), ("broker", "broker")):
        with walk.open(peer, "/") as page:
            for found in PAGES[kind]:
                if not found.key:
                    continue
                page.keyboard.press("g")
                page.keyboard.press(found.key)
                page.wait_for_url(f"**{found.path}")
                expect(page.locator("nav a[aria-current=page]").first).to_have_text(
                    re.compile(f"^{found.nav}")
                )
                walk.pressed.add((kind, found.key))
            page.keyboard.press("?")
            expect(page.locator("#keys")).to_be_visible()
            picture(page, f"{kind}-keys")
            page.click("#keys button")
            page.click("button:has-text('Log out')")
            page.wait_for_url("**/login")


@pytest.mark.timeout(900)  # eight processes and a browser, beside what else runs
def test_U5_every_page_and_every_action_works_on_a_live_demo(tmp_path: Path) -> None:
    with ExitStack() as ending:
        stage = ending.enter_context(live_demo(tmp_path))
        walk = Walk(ending.enter_context(chromium()), stage)
        search_by_meaning(walk)
        wrong = look_at_everything(walk)
        share_a_file(walk, tmp_path)
        share_and_join(walk)
        for part in (
            *(move_the_outbox, pause_and_resume, change_state, change_memory, move_tasks),
            *(decide, settle_conflicts, read_and_answer, keep_house, operate_the_broker),
            press_every_key,
        ):
            part(walk)
        assert not wrong, "\n".join(wrong)
        assert not walk.left(), "\n".join(["nobody has visited:", *walk.left()])
