"""The console in a real browser: what comes by itself, by keyboard, without a script, on a phone,
and through a daemon that is killed. Every page and action is walked by `test_whole_console`.

All tests here share one browser and one daemon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

import holdfast
from support.browser import PATIENCE_MS, chromium, picture, tab
from support.console import opened
from support.daemon import UpAsProcess, make_home, process

NARROW = (390, 844)


@dataclass
class World:
    browser: Browser
    up: UpAsProcess
    home: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = make_home(tmp_path_factory.mktemp("browser") / "home", "ana", "team", "board")
    with holdfast.open(home, sync="normal") as node:
        mesh = node.mesh("team")
        mesh.state.set("build/main", {"status": "green", "took_s": 41})
        mesh.memory.set("taste", "tea, no milk")
        mesh.files.share("notes/long.txt", b"one of many lines\n" * 8000)
        model = holdfast.Model(provider="p", name="m", dim=2)
        mesh.vectors.store("boats", [1.0, 0.0], model=model)
        mesh.tasks.create("paint the fence")
    with ExitStack() as ending:
        browser = ending.enter_context(chromium())
        yield World(browser, ending.enter_context(process(home, "--tcp", "127.0.0.1:0")), home)


def test_U5_what_others_write_comes_by_itself(world: World) -> None:
    with tab(world.browser, world.up, path="/log") as page, tab(world.browser, world.up) as other:
        expect(page.locator("#live-rows")).to_contain_text("build/main")
        with holdfast.connect(world.up.unix) as node:
            node.mesh("team").state.set("live/<i>now", "here")
        expect(page.locator("#live-rows")).to_contain_text("live/<i>now", timeout=PATIENCE_MS)
        expect(other.locator("#live-latest")).to_contain_text("live/<i>now", timeout=PATIENCE_MS)


def test_U5_a_form_works_and_what_cannot_be_undone_asks_first(world: World) -> None:
    with tab(world.browser, world.up, path="/settings") as page:
        page.fill("input[name=name]", "eyes")
        page.fill("input[name=reads]", "*")
        page.click("text=Make a token")
        expect(page.locator("pre")).to_contain_text("hf_")
        token = page.locator("pre").inner_text()
        page.click("text=Back to the settings")
        with tab(world.browser, world.up, token=token) as reading:
            expect(reading.locator(".out")).to_contain_text("reads only")
            assert reading.locator("form[action^='/do/']").count() == 0
        page.click("button:has-text('Revoke')")
        expect(page.locator("main")).to_contain_text("Revoke the token eyes?")
        picture(page, "asks-first")
        page.click("button:has-text('Revoke')")
        expect(page.locator(".said")).to_contain_text("good for nothing")


def test_U5_a_card_is_dragged_or_moved_by_a_letter(world: World) -> None:
    with tab(world.browser, world.up, path="/meshes/team/tasks") as page:
        page.fill("input[name=title]", "mend the roof")
        page.click("button:has-text('Add')")
        card = page.locator(".lane[data-status=open] .task:has-text('mend the roof')")
        card.drag_to(page.locator(".lane[data-status=claimed]"))
        taken = page.locator(".lane[data-status=claimed] .task:has-text('mend the roof')")
        expect(taken).to_be_visible(timeout=PATIENCE_MS)
        taken.focus()
        page.keyboard.press("d")
        expect(page.locator("main")).to_contain_text("Is it done?")
        page.click("button:has-text('Done')")
        done = page.locator(".lane[data-status=completed] .task:has-text('mend the roof')")
        expect(done).to_be_visible(timeout=PATIENCE_MS)


def test_U5_pages_are_read_without_a_script(world: World) -> None:
    with tab(world.browser, world.up, path="/settings") as page:
        page.fill("input[name=name]", "plain")
        page.click("text=Make a token")
        token = page.locator("pre").inner_text()
    with tab(world.browser, world.up, token=token, script=False, path="/log") as page:
        expect(page.locator("#live-rows")).to_contain_text("build/main")
        page.click("text=Meshes >> nth=0")
        page.fill("input[name=slug]", "scriptless")
        page.click("button:has-text('Create a mesh')")
        expect(page.locator(".said")).to_contain_text("The mesh scriptless is made.")


def test_U5_the_keyboard_is_enough(world: World) -> None:
    with tab(world.browser, world.up) as page:
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("g")
        page.keyboard.press("l")
        page.wait_for_url("**/log")
        page.keyboard.press("/")
        expect(page.locator("input[type=search]")).to_be_focused()
        page.keyboard.type("build")
        page.keyboard.press("Enter")
        page.wait_for_url("**subject=build**")
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()


def test_U5_on_a_phone_the_pages_are_behind_a_button(world: World) -> None:
    with tab(world.browser, world.up, size=NARROW) as page:
        link = page.locator(".side a:has-text('Log')")
        expect(link).to_be_hidden()
        page.click(".menu-label")
        expect(link).to_be_visible()
        picture(page, "menu-light-390")


def test_U5_on_a_phone_the_tab_of_the_page_is_in_sight(world: World) -> None:
    with tab(world.browser, world.up, path="/meshes/team/order", size=NARROW) as page:
        expect(page.locator(".tabs a[aria-current]")).to_be_in_viewport(ratio=0.9)
        assert page.evaluate("scrollY") == 0, "the page itself stays where it begins"


def test_U5_a_page_is_kept_up_to_date_also_if_its_scripts_come_slowly(world: World) -> None:
    held: list[Route] = []
    with tab(world.browser, world.up) as page:
        page.route("**/hx-sse.min.js*", lambda route: held.append(route))
        page.goto(f"{world.up.tcp}/meshes", wait_until="commit")
        page.wait_for_function("() => window.htmx")
        # Whatever htmx puts off until the next turn has been done then.
        page.evaluate("() => new Promise((done) => setTimeout(done))")
        held[0].continue_()
        page.wait_for_load_state("load")
        with holdfast.connect(world.up.unix) as node:
            node.create_mesh("late")
        expect(page.locator("#main")).to_contain_text("late", timeout=PATIENCE_MS)


def test_U5_a_page_says_that_the_daemon_is_gone_and_goes_on_when_it_is_back(
    tmp_path: Path, world: World
) -> None:
    home = make_home(tmp_path / "home")
    with ExitStack() as ending:
        up = ending.enter_context(process(home, "--tcp", "127.0.0.1:0"))
        port = up.tcp.rpartition(":")[2]
        with tab(world.browser, up, expects=("htmx:sse", "Failed to load")) as page:
            expect(page.locator("#live-figures")).to_contain_text("Log")
            page.wait_for_load_state("load")  # its scripts too: without them it says nothing
            up.kill()
            expect(page.locator("#away")).to_be_visible(timeout=PATIENCE_MS)
            picture(page, "away")
            back = ending.enter_context(process(home, "--tcp", f"127.0.0.1:{port}"))
            expect(page.locator("#away")).to_be_hidden(timeout=PATIENCE_MS)
            with holdfast.connect(back.unix) as node:
                node.mesh("team").state.set("after/all", 1)
            expect(page.locator("#live-latest")).to_contain_text("after/all", timeout=PATIENCE_MS)
            assert opened(back)["addresses"] == [up.tcp]


def test_U5_a_value_is_changed_and_brought_back_by_slider(world: World) -> None:
    with tab(world.browser, world.up, path="/meshes/team/state") as page:
        page.click("text=Write a new key")
        page.fill("input[name=key]", "colour")
        page.fill("textarea", "blue")
        page.click("text=Write as text")
        expect(page.locator("#live-rows")).to_contain_text("colour")
        page.click("tbody a:has-text('colour')")
        page.fill("textarea", "red")
        page.click("text=Write as text")
        expect(page.locator("#live-present")).to_contain_text("red")
        page.click("text=Its past")
        slider = page.locator("#slide-at")
        slider.focus()
        page.keyboard.press("End")
        expect(page.locator("output[for=slide-at]")).to_have_text("now")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("output[for=slide-at]")).to_contain_text("offset ")
        page.click("text=Travel")
        expect(page.locator(".mark")).to_have_text("changed")
        page.click("tbody a:has-text('colour')")
        page.click("button:has-text('Bring this value back')")
        expect(page.locator(".said")).to_contain_text("as a new write")
        page.click("text=The key now")
        expect(page.locator("#live-present")).to_contain_text("blue")


def test_U5_a_page_whose_daemon_goes_before_it_is_connected_says_so_and_begins_anew(
    world: World,
) -> None:
    with tab(world.browser, world.up, expects=("Failed to load", "Failed to fetch")) as page:
        page.route(re.compile(r"/live\?"), lambda route: route.abort())
        page.goto(f"{world.up.tcp}/meshes")
        expect(page.locator("#away")).to_be_visible(timeout=PATIENCE_MS)
        page.unroute(re.compile(r"/live\?"))
        expect(page.locator("#away")).to_be_hidden(timeout=PATIENCE_MS)
        expect(page.locator("#alive.good")).to_be_visible()
