"""`holdfast bugreport`: a file to send along with what went wrong."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from holdfast.apps.cli import contents
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.node.recovery.bug_report import bug_report
from holdfast.rules.errors import AlreadyExists


@command_of("bugreport")
@click.argument("file", default="holdfast-report.json")
def bugreport_(session: CommandSession, file: str) -> None:
    """Write a report of this home into a new FILE: versions, sizes, counts, how checks ended.

    It has no names, values, paths or addresses in it. Read it before you send it.
    """
    if Path(file).exists():
        raise AlreadyExists(f"{file} is there already", hint="name a file that is not there yet")
    with session.relaying():
        report = bug_report(session.check_home(), os.environ)
    raw = msgspec.json.format(msgspec.json.encode(report), indent=2)
    with contents.new_file(file) as draft:
        draft.write(raw + b"\n")
    session.talk("it has versions, sizes and counts in it; read it before you send it")
    session.show({"file": file, "bytes": len(raw) + 1}, f"{file}\n")
