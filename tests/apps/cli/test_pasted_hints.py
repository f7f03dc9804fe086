"""Hints name the place that the command was told, and only once."""

from __future__ import annotations

import click
import pytest

from holdfast.apps.cli.app import root
from holdfast.apps.cli.pasted_hints import ALONE, PLACELESS, pasteable

HOME = {"--home": "h3"}


@pytest.mark.parametrize(
    ("hint", "pasted"),
    [
        ("next: holdfast mesh create NAME", "next: holdfast mesh create --home h3 NAME"),
        ("end it with: holdfast down", "end it with: holdfast down --home h3"),
        (
            "see: holdfast status, holdfast outbox list",
            "see: holdfast status --home h3, holdfast outbox list --home h3",
        ),
        ("holdfast down --home /x; then go", "holdfast down --home /x; then go"),
        (
            "holdfast up --home /x, holdfast peer trust CARD",
            "holdfast up --home /x, holdfast peer trust --home h3 CARD",
        ),
        ("see also: holdfast --help", "see also: holdfast --help"),
        ("see: holdfast help exit-codes", "see: holdfast help exit-codes"),
        ("holdfast broker down", "holdfast broker down"),
        ("holdfast mesh remove-member X", "holdfast mesh remove-member --home h3 X"),
        ("a holdfast", "a holdfast"),
        (
            "there: `holdfast peer card`; here: holdfast peer trust CARD",
            "there: `holdfast peer card`; here: holdfast peer trust --home h3 CARD",
        ),
    ],
)
def test_U2_a_hint_names_the_home_that_the_command_was_told(hint: str, pasted: str) -> None:
    assert pasteable(hint, HOME) == pasted
    assert pasteable(pasted, HOME) == pasted


def test_U2_a_broker_is_named_by_its_folder_and_a_lake_by_its_own() -> None:
    places = {"--store": "my broker", "--lake": "lake"}
    assert pasteable("holdfast broker down", places) == "holdfast broker down --store 'my broker'"
    assert pasteable("holdfast pipeline status", places) == "holdfast pipeline status --lake lake"
    assert pasteable("holdfast outbox list", places) == "holdfast outbox list"


def test_U2_the_commands_without_verbs_are_known() -> None:
    ctx = click.Context(root)
    commands = {name: root.get_command(ctx, name) for name in root.list_commands(ctx)}
    alone = {name for name, one in commands.items() if not isinstance(one, click.Group)}
    assert alone == ALONE | PLACELESS
