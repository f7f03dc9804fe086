"""The glossary has every word that a user or a newcomer meets, and points at real files."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from holdfast.apps.cli.app import root
from holdfast.rules.broker_sync import SyncState
from holdfast.rules.data_classes import FAMILIES, WriteClass
from holdfast.rules.links import LinkState
from holdfast.rules.outbox import OutboxState, Policy
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import TaskStatus
from support.project import ROOT, SOURCE, expect_none, project_files, where

GLOSSARY = ROOT / "docs" / "glossary.md"

# Commands whose name is plain English and says what they do.
PLAIN = frozenset(
    (
        *("init", "status", "paths", "up", "reload", "down", "check", "send", "restore", "import"),
        *("completion", "help"),
    )
)

# Words that were replaced. Only names of tables keep them, because old homes have those tables.
GONE = re.compile(r"\b(desks?|spool(s|ed|ing)?|doorman|pullers?|pulse)\b", re.IGNORECASE)
TABLES = re.compile(r"\bspool\b")
# The state of a receipt of the bus: as a literal that programs compare with, and as the first word
# of what `holdfast bus send` says.
RECEIPT = re.compile(r"[\"'`]spooled\b|^spooled for ")
MAY_SAY = ("docs/glossary.md", "tests/tidy/test_glossary.py", "CHANGELOG.md")


def test_every_word_that_users_meet_is_explained() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    explained = {*re.findall(r"\*\*([^*]+)\*\*", text), *re.findall(r"`([^`]+)`", text)}
    expect_none(sorted({*_words()} - explained), "give the word a row in docs/glossary.md")


def test_every_file_that_the_glossary_names_exists() -> None:
    named = re.findall(r"\| `([\w/]+\.py)` \|", GLOSSARY.read_text(encoding="utf-8"))
    assert len(named) > 80
    expect_none([path for path in named if not (SOURCE / path).exists()], "the file has moved")


def test_no_word_has_two_rows() -> None:
    rows = re.findall(r"(?m)^\| \*\*([^|]+)\*\* \|", GLOSSARY.read_text(encoding="utf-8"))
    words = [word for row in rows for word in row.split("**, **")]
    expect_none(sorted({word for word in words if words.count(word) > 1}), "keep one row")


def test_words_that_were_replaced_do_not_come_back() -> None:
    found = [
        f"{where(path)}:{number}: {hit[0]}"
        for path in project_files()
        if path.suffix in (".py", ".md") and where(path) not in MAY_SAY
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for hit in [GONE.search(RECEIPT.sub("", line))]
        if hit and not (TABLES.search(line) and _names_a_table(where(path), line))
    ]
    expect_none(found, "docs/glossary.md says which word took its place")


def _names_a_table(place: str, line: str) -> bool:
    """SQL, or the name of a table as a string, and only where tables are known by name."""
    in_storage = place.startswith(("src/holdfast/storage/", "tests/", "tools/"))
    return in_storage and bool(
        re.search(r"[\"'`]spool[\"'`_]|\b[A-Z]{4,}\b|spool\.|\bspool_", line)
    )


def _words() -> Iterator[str]:
    yield from set(root.list_commands(click.Context(root))) - PLAIN
    yield from FAMILIES
    for states in (WriteClass, SyncState, LinkState, OutboxState, Policy, Outcome, TaskStatus):
        yield from map(str, states)
