"""`holdfast console`: what it prints logs in once, and what helps where it cannot."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from support.cli import Cli
from support.console import Browser
from support.daemon import process


def test_U5_the_command_prints_an_address_that_logs_in_once(cli: Cli) -> None:
    home = cli.home
    with process(home, "--tcp", "127.0.0.1:0") as up:
        said = cli("console", "--no-browser")
        parts = urlsplit(said.out.strip())
        assert f"{parts.scheme}://{parts.netloc}" == up.tcp
        assert (parts.path, parts.query) == ("/login", "")
        code = parts.fragment.removeprefix("code=")
        browser = Browser(up.tcp)
        assert browser.log_in(code=code).leads_to == "/"
        assert "Overview" in browser.get("/").text
        assert Browser(up.tcp).log_in(code=code).status == 401
        told = json.loads(cli("console", "--json").out)
        assert told["url"].startswith(f"{up.tcp}/login#code=")


def test_U5_without_a_daemon_the_command_says_what_helps(cli: Cli) -> None:
    assert "holdfast up --detach" in cli("console", code=3).err


def test_U5_a_daemon_without_a_port_opens_one_and_finds_it_again(cli: Cli) -> None:
    with process(cli.home):
        first = cli("console", "--no-browser").out.strip()
        parts = urlsplit(first)
        browser = Browser(f"{parts.scheme}://{parts.netloc}")
        browser.log_in(code=parts.fragment.removeprefix("code="))
        assert "Overview" in browser.get("/").text
        again = urlsplit(cli("console", "--no-browser").out.strip())
        assert again.netloc == parts.netloc
    with process(cli.home) as back:
        assert parts.netloc in back.tcp
        assert "Overview" in browser.get("/").text
