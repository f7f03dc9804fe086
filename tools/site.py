"""Build the site of the documentation: dist/site, strict, with the README as its first page.

    python -m tools.site                 build it
    python -m tools.site --into FOLDER   build it there

The pages are those of docs/ and a few of the project's other ones. They are laid out in a folder of
their own first, with links between them turned to where they now are. A link to a file that is not
on the site, such as a program, becomes the name of that file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tools.speed_plot import speed_page, speed_plot

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
CONFIG: Final = ROOT / "mkdocs.yml"
BUILDER: Final = Path(sys.executable).parent / "zensical"

ELSEWHERE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Pages that lie outside docs/, and where the site has them."""
DRAWN: Final = ("speed.md", "pictures/speed.svg", "site.css")
"""What is made here."""
LINK: Final = re.compile(
    r"(?P<before>!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\()(?P<target>[^)\s]+)\)"
)
IMAGE: Final = re.compile(r'(?P<before><img [^>]*?src=")(?P<target>[^"]+)"')
CSS: Final = """\
.md-typeset table:not([class]) { font-size: .68rem; }
.md-typeset pre > code { font-size: .64rem; }
"""


class BrokenSite(Exception):
    """What is wrong with the pages or their list."""


def lay_out(into: Path, root: Path = ROOT) -> None:
    """Writes the pages and the settings of the site into an empty folder."""
    pages = into / "pages"
    docs = root / "docs"
    sources = {path: path.relative_to(docs) for path in sorted(docs.rglob("*")) if path.is_file()}
    sources |= {root / source: Path(place) for source, place in ELSEWHERE.items()}
    places = {source: place.as_posix() for source, place in sources.items()}
    for source, place in sources.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(turned(source, places), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    readme = (root / "README.md").read_text(encoding="utf-8")
    (pages / "site.css").write_text(CSS, encoding="utf-8")
    (pages / "pictures").mkdir(exist_ok=True)
    (pages / "pictures" / "speed.svg").write_text(speed_plot(readme), encoding="utf-8")
    (pages / "speed.md").write_text(speed_page(readme), encoding="utf-8")
    config = settings(root)
    check_listed(config["nav"], pages)
    (into / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def turned(source: Path, places: dict[Path, str]) -> str:
    """The text of a page, with links that lead where the site has what they name."""
    here = Path(places[source]).parent

    def turn(found: re.Match[str]) -> str:
        name, hash, anchor = found["target"].partition("#")
        if not name or "://" in name or name.startswith("mailto:"):
            return found[0]
        # Not `resolve`: a link of the file system would lead out of the project.
        meant = Path(os.path.normpath(source.parent / name))
        if meant in places:
            led = os.path.relpath(places[meant], here)
            return f"{found['before']}{led}{hash}{anchor})"
        if not meant.exists():
            raise BrokenSite(f"{source}: {found['target']} is not there")
        return found["text"]

    def turn_image(found: re.Match[str]) -> str:
        meant = Path(os.path.normpath(source.parent / found["target"]))
        if meant not in places:
            raise BrokenSite(f"{source}: {found['target']} is not there")
        return f'{found["before"]}{os.path.relpath(places[meant], here)}"'

    parts = re.split(r"(?ms)(^```.*?^```$)", source.read_text(encoding="utf-8"))
    text = [part if part[:3] == "```" else LINK.sub(turn, part) for part in parts]
    return IMAGE.sub(turn_image, "".join(text))


def settings(root: Path = ROOT) -> dict[str, Any]:
    """What mkdocs.yml says, with every decision below the list of decisions."""
    config: dict[str, Any] = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    index = "decisions/README.md"
    listed = (root / "docs" / index).read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (\d{4}) \| \[(.+?)\]\(([^)]+)\)", listed)
    every = [index, *({f"{no} {title}": f"decisions/{file}"} for no, title, file in rows)]

    def fill(entry: Any) -> Any:
        if isinstance(entry, list):
            return [fill(one) for one in entry]
        if isinstance(entry, dict):
            return {name: every if inner == index else fill(inner) for name, inner in entry.items()}
        return entry

    config["nav"] = fill(config["nav"])
    return config


def check_listed(nav: Any, pages: Path) -> None:
    """BrokenSite if a page is not in the list, or the list names one that is not there."""
    named = list(_named(nav))
    there = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    problems = [f"{page}: not named in mkdocs.yml" for page in sorted(there - {*named})]
    problems += [f"{page}: named in mkdocs.yml, and not there" for page in {*named} - there]
    problems += [f"{page}: named twice" for page in {*named} if named.count(page) > 1]
    if problems:
        raise BrokenSite("\n".join(problems))


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for one in inner for page in _named(one)]


def build(into: Path, root: Path = ROOT) -> None:
    """Builds the site into this folder, in place of what is there. BrokenSite if a link is broken
    or a page is not in the list.
    """
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        lay_out(work, root)
        words = [str(BUILDER), "build", "--strict", "--config-file", str(work / "mkdocs.yml")]
        done = subprocess.run(
            words, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise BrokenSite(_plain(done.stdout))
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(work / "site", into)


def _plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def main() -> None:
    into = Path(sys.argv[2]) if sys.argv[1:2] == ["--into"] else ROOT / "dist" / "site"
    try:
        build(into)
    except BrokenSite as error:
        sys.exit(str(error))
    print(into / "index.html")


if __name__ == "__main__":
    main()
