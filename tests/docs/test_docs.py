"""The documentation is run: what a page shows is what a reader gets."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.apps.cli.app import root
from holdfast.node.library import aio, families, node
from holdfast.node.log import log
from holdfast.rules.errors import BadInput
from holdfast.service.instance_lock import daemon_note
from holdfast.storage.files.home import HomePaths
from support.machine_pages import StoryOnMachines
from support.netns import Networks, need_networks
from support.pages import Story, Wrong, blocks, matches
from support.project import ROOT, TESTS, expect_none, python_files, text_of

DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "operating").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *GUIDES]
ON_SPARK = DOCS / "pipeline.md"
EXPECTED = {
    "README.md",
    "architecture.md",
    "bus.md",
    "command-line.md",
    "console.md",
    "delivery.md",
    "http.md",
    "library.md",
    "mcp.md",
    "operating.md",
    "pipeline.md",
    "promises.md",
    "quorum.md",
    "tour.md",
    *("alerts.md", "backup.md", "capacity.md", "containers.md", "kubernetes.md", "systemd.md"),
    *("tls.md", "upgrade.md"),
    "zones.md",
}

PUBLIC = ("holdfast", "holdfast.errors", "holdfast.pipeline", "holdfast.simulate")
LINK = re.compile(r"\]\(([^)\s]+)\)")
ITEM = re.compile(r"^\| \*\*([A-Z]\d+)\*\*", re.MULTILINE)


def _name(page: Path) -> str:
    return page.name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in, of a user with nothing in the home directory and nothing of ours in
    the environment. Daemons that a page leaves behind, because it went wrong, are ended.
    """
    before = dict(os.environ)
    for name in before:
        if name.startswith(("HOLDFAST_", "XDG_")):
            monkeypatch.delenv(name)
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield here
    for database in (*tmp_path.rglob("data.db"), *tmp_path.rglob("broker.db")):
        note = daemon_note(HomePaths(database.parent))
        if note is not None:
            os.kill(note.pid, signal.SIGTERM)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]  # a page has exported it


# --- what pages show -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if page != ON_SPARK], ids=_name)
def test_U1_U2_every_page_does_what_it_shows(page: Path, folder: Path) -> None:
    Story(page.name, folder).tell(page.read_text(encoding="utf-8"))


def test_U2_a_page_works_where_paths_are_too_long_for_a_socket(folder: Path) -> None:
    """As in the temporary folders of macOS. All pages ask where a socket is."""
    deep = folder / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    os.chdir(deep)  # `folder` goes back at its end
    Story("zones.md", deep).tell((DOCS / "zones.md").read_text(encoding="utf-8"))
    named = [page.name for page in PAGES if "--unix-socket" in text_of(page)]
    assert "zones.md" in named
    expect_none(
        [page for page in named if re.search(r"--unix-socket \S*\.sock", text_of(DOCS / page))],
        "ask for it: holdfast paths socket",
    )


def test_U2_a_page_sees_in_python_only_what_its_shell_exported(folder: Path) -> None:
    taken = "```console\n$ here=$(holdfast paths home)\n$ printenv here || echo none\nnone\n```\n"
    read = "```python\nimport os\n\nos.environ['here']  # -> '/…'\n```\n"
    with pytest.raises(KeyError, match="here"):
        Story("page", folder).tell(taken + read)
    assert Story("page", folder).tell(f"{taken}```console\n$ export here\n```\n{read}") == 4


def test_U2_B6_three_machines_do_what_the_page_of_the_bus_shows(folder: Path) -> None:
    need_networks()
    with Networks() as networks:
        lan = networks.bridge()
        machines = {name: networks.machine() for name in ("ana", "bo", "cleo")}
        for number, machine in enumerate(machines.values(), 1):
            lan.plug(machine, f"192.168.1.{number}/24")
        page = (DOCS / "bus.md").read_text(encoding="utf-8")
        assert StoryOnMachines("bus.md", folder, machines).tell(page) > 20


@pytest.mark.timeout(360)
def test_U1_P10_the_page_of_the_pipeline_does_what_it_shows(folder: Path) -> None:
    """In a process of its own, which ends with its Spark."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "docs" / "page_on_spark.py"), str(ON_SPARK), str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=330,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_U1_U2_the_pages_are_there_and_show_something() -> None:
    assert {page.name for page in PAGES} >= EXPECTED
    shown = [block.language for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))]
    assert shown.count("python") > 10
    assert shown.count("console") > 10


@pytest.mark.parametrize(
    "page",
    [
        "```python\n1 + 1  # -> 3\n```",
        "```python\nx = 1 + 1  # -> 2\n```",
        "```python\nif True:\n    [1, 2]  # -> [1, …, 3]\n```",
        "```python\nraise RuntimeError\n```",
        "```python\nx = 1\n```\n```python\nx  # -> 2\n```",
    ],
)
def test_U1_a_page_with_a_wrong_value_is_caught(page: str, folder: Path) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        Story("page", folder).tell(page)


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ holdfast --version\nholdfast, version 0.0.0\n```",
        "```console\n$ holdfast no-such-command\n```",
        "```console\n$ holdfast --version\nerror: …\n```",
        "```console\n$ holdfast status\nerror: …\n…\n$ echo $?\n0\n```",
        "```console\n$ holdfast --version | tr a-z A-Z\nholdfast…\n```",
    ],
)
def test_U2_a_page_with_wrong_output_is_caught(page: str, folder: Path) -> None:
    with pytest.raises(Wrong):
        Story("page", folder).tell(page)


def test_U2_a_page_with_right_output_passes(folder: Path) -> None:
    page = (
        "```console\n$ holdfast --version\nholdfast, version …\n$ holdfast status\n"
        "error: there is no Holdfast home in …\nhint: …\n$ echo $?\n4\n"
        "$ holdfast --version | tr a-z A-Z\nHOLDFAST…\n```"
    )
    assert Story("page", folder).tell(page) == 4


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["a", "b"], False),
        (["a", "…"], ["a", "b", "c"], True),
        (["…", "c"], ["a", "b", "c"], True),
        (["at 12…z"], ["at 12 34 z"], True),
        (["at …"], ["on 12"], False),
        (["a.c"], ["abc"], False),
        (["a  b"], ["a     b"], True),
        (["a  b"], ["a b"], False),
        (["a b"], ["a  b"], False),
    ],
)
def test_U2_dots_stand_for_what_differs_and_for_nothing_else(
    shown: list[str], printed: list[str], same: bool
) -> None:
    assert matches(shown, printed) is same


@pytest.mark.parametrize(
    ("asked", "environment", "synchronous"),
    [(None, None, 2), (None, "full", 2), (None, "normal", 1), ("normal", "full", 1)],
)
def test_S2_a_home_opens_with_the_durability_that_the_page_names(
    asked: str | None,
    environment: str | None,
    synchronous: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if environment is not None:
        monkeypatch.setenv("HOLDFAST_STORE_SYNC", environment)
    with holdfast.open(peer="ana", create=True, sync=asked) as opened:
        writing = opened._opened.store._con
        assert writing.pragma("synchronous") == synchronous
        assert writing.pragma("journal_mode") == "wal"
        assert writing.pragma("foreign_keys") == 1


def test_S2_there_is_no_way_to_switch_syncing_off(folder: Path) -> None:
    with pytest.raises(BadInput, match="neither full nor normal"):
        holdfast.open(peer="ana", create=True, sync="off")


# --- what pages must name ------------------------------------------------------------------------


def test_U2_every_command_stands_in_the_reference() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    told = set(re.findall(r"(?m)^##+ (holdfast .+)$", page))
    missing = [path for path in _commands(root, "holdfast") if path not in told]
    expect_none(missing, "run: make docs")


def test_U1_every_verb_of_the_library_stands_on_its_page() -> None:
    page = (DOCS / "library.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\.(\w+)\b", page)) | set(re.findall(r"`(\w+)\b", page))
    missing = sorted(f"{kind.__name__}.{verb}" for kind, verb in _verbs() if verb not in named)
    expect_none(missing, "show it in docs/library.md")


def test_U1_pages_import_from_the_public_paths_only() -> None:
    strange = [
        f"{page.name}: {module}"
        for page in PAGES
        if page != ON_SPARK
        for module in re.findall(r"(?m)^(?:from|import) (holdfast[\w.]*)", page.read_text("utf-8"))
        if module not in PUBLIC
    ]
    expect_none(strange, f"users import from {', '.join(PUBLIC)}: export it there")


def test_U1_every_public_name_stands_on_the_page_of_the_library() -> None:
    page = (DOCS / "library.md").read_text(encoding="utf-8")
    expect_none([name for name in holdfast.__all__ if name not in page], "say what it is for")


def test_U1_every_promise_that_is_kept_has_its_proof() -> None:
    kept = (DOCS / "promises.md").read_text(encoding="utf-8").partition("\n## Planned\n")[0]
    items = ITEM.findall(kept)
    assert len(items) > 20
    names = re.compile(r"(?m)^(?:async )?def (test_\w+)")
    tests = " ".join(name for path in python_files(TESTS) for name in names.findall(text_of(path)))
    expect_none(
        [item for item in items if not re.search(rf"\btest_(\w+_)?{item}_", tests)],
        "no test carries this id: prove it, or move it to the planned ones",
    )


def test_U1_every_promise_that_tests_prove_stands_on_the_page() -> None:
    told = set(ITEM.findall((DOCS / "promises.md").read_text(encoding="utf-8")))
    named = re.compile(r"(?m)^(?:async )?def test_((?:[A-Z]\d+_)+)")
    proved = {
        item
        for path in python_files(TESTS)
        for items in named.findall(text_of(path))
        for item in items.strip("_").split("_")
    }
    expect_none(sorted(proved - told), "say in docs/promises.md what is promised")


def test_U2_no_link_leads_nowhere() -> None:
    pages = [*PAGES, *DOCS.glob("*/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target and not _leads_somewhere(page, target)
    ]
    expect_none(broken, "mend the link")


def _leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    there = page.parent / name if name else page
    if not anchor:
        return there.exists()
    headings = re.findall(r"(?m)^#+ (.+)$", there.read_text(encoding="utf-8"))
    return anchor in {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def _commands(command: click.Command, path: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        inner = command.get_command(ctx, name)
        assert inner is not None
        yield from _commands(inner, f"{path} {name}")


def _verbs() -> Iterator[tuple[type, str]]:
    """What users call: the public methods and properties of nodes, meshes, families and the log."""
    shown = [node.Node, node.Mesh, log.Log, aio.AsyncNode, aio.AsyncMesh]
    shown += [families.State, families.Memories, families.Vectors, families.Files]
    shown += [families.Tasks, families.Facts]
    for kind in shown:
        for name, found in inspect.getmembers(kind):
            if not name.startswith("_") and (callable(found) or isinstance(found, property)):
                yield kind, name
