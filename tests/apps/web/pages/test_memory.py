"""Memory, files and vectors of a mesh in the console."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.rules.limits import CONSOLE_FILE_PART, CONSOLE_ROWS
from support.console import ConsoleInThread, console_up
from support.daemon import make_home

SCRIPT = "<script>alert(1)</script>"
MEMORY, FILES, VECTORS = (f"/meshes/team/{one}" for one in ("memory", "files", "vectors"))
MODEL = holdfast.Model(provider="p", name="a:b", dim=2)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("memory") / "home", "ana", "team")) as found:
        yield found


def more(page: str) -> str:
    """Where the next rows are."""
    return html.unescape(page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0])


def test_U5_memories_are_listed_found_and_changed(console: ConsoleInThread) -> None:
    memory, browser = console.up.daemon.api.node.mesh("team").memory, console.browser()
    assert "Nobody remembers anything here yet" in browser.get(MEMORY).text
    for number in range(CONSOLE_ROWS + 1):
        memory.set(f"k/{number:04}", number)
    memory.set(SCRIPT, SCRIPT, tags=[SCRIPT])
    assert f"k/{CONSOLE_ROWS:04}" in browser.get(more(browser.get(MEMORY).text)).text
    found = browser.get(f"{MEMORY}?key=k/0007").text
    assert "k/0007" in found
    assert "k/0008" not in found
    assert "Nobody remembers anything like that" in browser.get(f"{MEMORY}?scope=peer:bo").text
    assert browser.get(f"{MEMORY}?scope=moon").status == 400
    at = "/meshes/team/remembered?peer=ana&key=taste"
    told = {"mesh": "team", "key": "taste"}
    made = browser.done(
        "memory.set_text", at=at, **told, value="tea", tags="drink, hot", expect="absent"
    )
    assert "--tag drink --tag hot" in made.text
    row = memory.get("taste")
    assert row is not None
    assert (row.value, row.tags) == ("tea", ("drink", "hot"))
    late = browser.done("memory.set", at=at, **told, value='{"a": 1}', expect="absent")
    assert late.status == 409
    assert browser.done("memory.forget", at=at, **told, expect=str(row.stamp)).status == 200
    assert memory.get("taste") is not None, "it asks first"
    gone = browser.done("memory.forget", at=at, **told, expect=str(row.stamp), sure="yes")
    assert "remembers nothing under this key" in gone.text
    page = browser.get(f"/meshes/team/remembered?peer=ana&key={SCRIPT}").text
    assert SCRIPT not in page.partition("<main")[2]
    assert "&lt;script&gt;" in page
    others = browser.get("/meshes/team/remembered?peer=bo&key=taste").text
    assert "only it can change it" in others
    assert "/do/memory" not in others


def test_U5_a_file_of_ten_megabytes_is_shown_a_part_at_a_time(console: ConsoleInThread) -> None:
    files, browser = console.up.daemon.api.node.mesh("team").files, console.browser()
    assert "Nobody shares a file here yet" in browser.get(FILES).text
    line = "é" * 32 + SCRIPT + "\n"
    text = "x" + line * (10_000_000 // len(line.encode()))  # a part begins within a character
    files.share("docs/large.txt", text.encode())
    files.share("bytes", bytes(range(256)))
    files.share("nothing", b"")
    assert "docs/large.txt" in browser.get(FILES).text
    page = browser.get("/meshes/team/file?path=docs/large.txt").text
    assert len(page) < 2 * CONSOLE_FILE_PART
    assert "&lt;script&gt;" in page
    assert SCRIPT not in page
    following = browser.get(more(page)).text
    assert f"from={2 * CONSOLE_FILE_PART}" in following
    assert "It is no text" not in following
    assert "of 9\N{THIN SPACE}9" in following
    assert browser.get("/meshes/team/file?path=docs/large.txt&from=99999999999").status == 200
    assert browser.get("/meshes/team/file?path=docs/large.txt&from=x").status == 400
    assert "00000010  10 11" in browser.get("/meshes/team/file?path=bytes").text
    assert "It is empty" in browser.get("/meshes/team/file?path=nothing").text
    assert browser.get("/meshes/team/file?path=none").status == 404
    assert browser.get("/meshes/team/file").status == 404
    told = {"mesh": "team", "path": "bytes"}
    sure = browser.done("file.delete", at=FILES, **told)
    assert "Stop sharing bytes with team?" in sure.text
    gone = browser.done("file.delete", at=FILES, **told, sure="yes")
    assert "holdfast file delete bytes --mesh team" in gone.text
    assert browser.get("/meshes/team/file?path=bytes").status == 404


def test_U5_what_is_near_to_a_vector_is_found(console: ConsoleInThread) -> None:
    vectors, browser = console.up.daemon.api.node.mesh("team").vectors, console.browser()
    assert "No vectors are stored" in browser.get(VECTORS).text
    vectors.store("boats", [1.0, 0.0], model=MODEL, content=SCRIPT, metadata={"a": 1})
    vectors.store("cars", [0.0, 1.0], model=MODEL, content="We drive")
    named = "p:a:b:unknown:2:float32"
    assert named in browser.get(VECTORS).text
    told = {"mesh": "team", "model": named, "of": "p:a:b:unknown", "dim": "2", "kept": "float32"}
    found = browser.done("vector.search", at=VECTORS, **told, query="[1, 0.1]", limit="1").text
    assert "boats" in found
    assert "cars" not in found
    assert SCRIPT not in found
    assert "/do/vector.delete" in found
    for wrong in (
        {"query": "[1]"},
        {"query": "hello"},
        {"query": "[1, 0]", "limit": "x"},
        {"query": "[1, 0]", "model": "none"},
        {},
    ):
        refused = browser.done("vector.search", at=VECTORS, **{**told, **wrong})
        assert refused.status == 400, wrong
    long = MODEL.__class__(provider="p", name="long", dim=3072)
    vectors.store("l", [0.123456789] * 3072, model=long)
    wide = {**told, "model": "p:long:unknown:3072:float32"}
    many = browser.done("vector.search", at=VECTORS, **wide, query=str([0.123456789] * 3072))
    assert many.status == 200
    reading = console.browser(console.up.daemon.api.trust.add_token("eyes", reads=["*"]))
    seen = reading.done("vector.search", at=VECTORS, **told, query="[1, 0.1]")
    assert "boats" in seen.text
    assert "/do/vector.delete" not in seen.text
    sure = browser.done("vector.delete", at=VECTORS, **told, key="boats")
    assert "Delete the vector boats" in sure.text
    done = browser.done("vector.delete", at=VECTORS, **told, key="boats", sure="yes")
    assert "holdfast vector delete boats --model p:a:b:unknown --dim 2" in done.text
    left = browser.done("vector.search", at=VECTORS, **told, query="[1, 0.1]").text
    assert "boats" not in left


def test_U5_a_memory_that_was_written_over_is_brought_back(console: ConsoleInThread) -> None:
    node, browser = console.up.daemon.api.node, console.browser()
    memory = node.mesh("team").memory
    memory.set("plan", {"to": "<b>sea"}, tags=["old"])
    memory.set("plan", "nothing")
    at = "/meshes/team/remembered?key=plan"
    page = browser.get(at).text
    assert page.count('action="/do/memory.restore"') == 1, "not of the version that stands"
    row = memory.get("plan")
    assert row is not None
    form = {"mesh": "team", "key": "plan", "value": '{"to":"<b>sea"}', "tags": "old"}
    done = browser.done("memory.restore", at=at, expect=f"{row.lamport}@ana", **form)
    assert "plan is remembered as it was." in done.text
    assert "holdfast memory set plan" in done.text
    again = memory.get("plan")
    assert again is not None
    assert (again.value, list(again.tags)) == ({"to": "<b>sea"}, ["old"])
    moved = browser.do("memory.restore", at=at, expect=f"{row.lamport}@ana", **form)
    assert moved.status == 409, "somebody has written meanwhile"


def test_U5_a_memory_that_is_too_large_for_a_form_has_its_commands(
    console: ConsoleInThread,
) -> None:
    memory = console.up.daemon.api.node.mesh("team").memory
    memory.set("large", "x" * 1_000_000)
    memory.set("large", "y" * 1_000_000)
    page = console.browser().get("/meshes/team/remembered?key=large").text
    assert len(page) < 30_000
    assert "1\N{THIN SPACE}000\N{THIN SPACE}000 characters" in page
    assert "holdfast memory get large --mesh team &gt; FILE" in page
    assert "memory.restore" not in page
