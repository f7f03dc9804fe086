"""The site is built from the pages as they are, strict, and asks no other host for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.project import ROOT, expect_none
from tools.site import ELSEWHERE, BrokenSite, build, lay_out
from tools.speed_plot import figures, speed_plot

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site") / "built"
    build(into)
    return into


def test_U7_every_page_is_on_the_site(site: Path) -> None:
    pages = {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    } | {*ELSEWHERE.values(), "speed.md"}
    assert len(pages) > 100
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    # The README of a folder becomes its index, for the folder's own address.
    wanted = {re.sub(r"(^|/)README\.md$", r"\1index.md", page)[:-3] + ".html" for page in pages}
    expect_none(sorted(wanted - built), "the page was not built")
    assert "holdfast" in (site / "search.json").read_text(encoding="utf-8").lower()


def test_U7_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    asked = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^\s\">]+"
    )
    found = [
        f"{path.relative_to(site)}: {hit}"
        for path in site.rglob("*.html")
        for hit in asked.findall(path.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in hit
    ]
    expect_none(found, "a reader's browser is to ask this site and nobody else")


def test_U7_pictures_and_links_of_the_readme_lead_to_the_site(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    local = [
        target
        for target in re.findall(r'(?:src|href)="([^"#:]+)(?:#[^"]*)?"', page)
        if not target.startswith("//")
    ]
    assert len(local) > 20
    expect_none([target for target in local if not (site / target).exists()], "leads nowhere")
    assert 'href="tour.html"' in page


def small_project(folder: Path) -> Path:
    """A project of a few pages, with the settings of the real one."""
    docs = folder / "docs"
    (docs / "decisions").mkdir(parents=True)
    (docs / "decisions" / "README.md").write_text("# Decisions\n\n| 0001 | [one](0001-one.md) |\n")
    (docs / "decisions" / "0001-one.md").write_text("# One\n\n[back](README.md)\n")
    (docs / "tour.md").write_text("# Tour\n\n[home](../README.md) [code](../tool.py)\n")
    speed = (
        "## Speed\n\n| what | ratio | aim |\n| --- | --- | --- |\n| a, to b | 2 | ≥ 1 |\n\nEnd.\n"
    )
    for source in ELSEWHERE:
        (folder / source).parent.mkdir(exist_ok=True)
        (folder / source).write_text(
            f"# {source}\n\n[Tour](/docs/tour.md)\n".replace("/docs", "docs")
        )
    (folder / "examples" / "README.md").write_text("# Examples\n")
    (folder / "README.md").write_text(f"# Small\n\n[Tour](docs/tour.md)\n\n{speed}")
    (folder / "tool.py").write_text("")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    pages = ("index", "contributing", "changelog", "examples", "speed", "tour")
    nav = "".join(f"  - {page}: {page}.md\n" for page in pages)
    (folder / "mkdocs.yml").write_text(f"{settings}\nnav:\n{nav}  - Why: decisions/README.md\n")
    return folder


def test_U7_links_follow_the_pages_that_were_moved(tmp_path: Path) -> None:
    lay_out(tmp_path / "work", small_project(tmp_path / "small"))
    pages = tmp_path / "work" / "pages"
    assert "[Tour](tour.md)" in (pages / "index.md").read_text()
    assert "[home](index.md) code" in (pages / "tour.md").read_text()
    assert "0001 one: decisions/0001-one.md" in (tmp_path / "work" / "mkdocs.yml").read_text()


@pytest.mark.parametrize(
    ("page", "text", "says"),
    [
        ("docs/tour.md", "[gone](gone.md)\n", "gone.md is not there"),
        ("docs/tour.md", '<img alt="x" src="pictures/none.svg">\n', "none.svg is not there"),
        ("docs/left-out.md", "# Left out\n", "left-out.md: not named in mkdocs.yml"),
        ("mkdocs.yml", "  - Gone: gone.md\n", "gone.md: named in mkdocs.yml, and not there"),
        ("mkdocs.yml", "  - Again: tour.md\n", "tour.md: named twice"),
    ],
)
def test_U7_a_broken_link_and_a_page_left_out_are_errors(
    page: str, text: str, says: str, tmp_path: Path
) -> None:
    small = small_project(tmp_path / "small")
    with (small / page).open("a") as file:
        file.write(text)
    with pytest.raises(BrokenSite, match=re.escape(says)):
        lay_out(tmp_path / "work", small)


def test_U7_what_the_builder_itself_finds_wrong_is_an_error(tmp_path: Path) -> None:
    small = small_project(tmp_path / "small")
    into = tmp_path / "built"
    into.mkdir()
    (into / "old.html").write_text("")
    # Not an inline link, so only the builder sees it.
    (small / "docs" / "tour.md").write_text("# Tour\n\n[gone][1]\n\n[1]: gone.md\n")
    with pytest.raises(BrokenSite, match="does not exist"):
        build(into, small)
    assert (into / "old.html").exists(), "a site that cannot be built replaces none"


def test_U7_the_plot_shows_what_the_table_says_and_no_more() -> None:
    rows = figures(README.read_text(encoding="utf-8"))
    assert len(rows) > 15
    made = {row.what: row for row in rows}
    table = (
        "## Speed\n\n| what | ratio | aim |\n| --- | --- | --- |\n"
        "| writes, fast, to a | 0.45 to 0.52 | ≥ 0.5 |\n| the same, to b | 2 | ≤ 4 |\n"
        "| size | 17 MB | < 100 MB |\n| rows | 1.0 | no growth |\n\nEnd.\n"
    )
    found = figures(table)
    assert [(row.what, round(row.least, 2), round(row.most, 2)) for row in found] == [
        ("writes, fast, to a", 0.9, 1.04),
        ("writes, fast, to b", 2.0, 2.0),
    ]
    drawn = speed_plot(README.read_text(encoding="utf-8"))
    assert drawn.count("<g>") == len(made) == len(rows)
