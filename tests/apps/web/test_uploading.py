"""A file that a browser shares: its content as it comes, and nothing over what is there unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from holdfast.rules.limits import BODY_BYTES_MAX
from support.console import Browser, ConsoleInThread, Shown, console_up
from support.daemon import make_home

SCRIPT = "</script><script>alert(1)</script>.txt"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("upload") / "home")) as found:
        yield found


def send(browser: Browser, content: bytes, token: str | None = None, **fields: str) -> Shown:
    """As the script of the page does."""
    headers = {
        "accept": "application/json",
        "content-type": "application/octet-stream",
        "origin": browser.address,
        "x-form-token": browser.token() if token is None else token,
    }
    asked = urlencode({"mesh": "team", **fields})
    return browser.ask("POST", f"/do/file.share?{asked}", body=content, headers=headers)


def code_of(answer: Shown) -> str:
    return str(json.loads(answer.text)["error"]["code"])


def test_U5_a_file_is_shared_as_it_is_and_the_next_page_says_so(console: ConsoleInThread) -> None:
    browser = console.browser()
    content = bytes(range(256)) * (BODY_BYTES_MAX // 128)  # twice what another form may have
    assert send(browser, content, path="bilder/später (1).bin").status == 204
    files = console.up.daemon.api.node.mesh("team").files
    assert files.read("bilder/später (1).bin") == content
    page = browser.get("/meshes/team/files").text
    assert "bilder/später (1).bin is shared." in page
    assert "holdfast file share " in page


def test_U5_what_is_shared_already_is_replaced_only_if_that_is_marked(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    assert send(browser, b"one", path="plan.txt").status == 204
    refused = send(browser, b"two", path="plan.txt")
    assert (refused.status, code_of(refused)) == (409, "already_exists")
    files = console.up.daemon.api.node.mesh("team").files
    assert files.read("plan.txt") == b"one"
    assert send(browser, b"two", path="plan.txt", replace="yes").status == 204
    assert files.read("plan.txt") == b"two"


def test_U5_a_file_without_its_token_its_path_or_the_right_to_write_is_nowhere(
    console: ConsoleInThread,
) -> None:
    browser = console.browser()
    assert send(browser, b"x", token="", path="a").status == 403
    assert send(browser, b"x", token="wrong", path="a").status == 403
    assert send(browser, b"x").status == 400
    for odd in ("../../etc/passwd", "/etc/passwd", "a\r\nb", SCRIPT):
        refused = send(browser, b"x", path=odd)
        assert (refused.status, refused.headers["content-type"]) == (400, "application/json"), odd
    assert send(browser, b"x", path="a", mesh="none").status == 404
    reading = console.browser(console.up.daemon.api.trust.add_token("reads", reads=["*"]))
    assert (send(reading, b"x", path="a").status, reading.cookie != "") == (403, True)
    plain = browser.do("file.share", mesh="team", path="a", content="a.txt")
    assert plain.status == 400
    assert "holdfast file share a --from FILE" in plain.text
    assert "a" not in [row.path for row in console.up.daemon.api.node.mesh("team").files.list()]
    assert "data-upload" not in reading.get("/meshes/team/files").text
