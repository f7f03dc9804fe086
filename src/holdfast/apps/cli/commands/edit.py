"""`state edit` and `memory edit`: a value in an editor, and what becomes of it.

The value is written back only on the stamp that was read. If somebody wrote meanwhile, the two
changes are merged where they do not meet (`rules/three_way`); where they do, nothing is written and
what was typed stays in a file. So it does whenever it could not be written.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.apps.cli.session import CommandSession
from holdfast.node.core.change import Receipt
from holdfast.rules.errors import BadInput, HoldfastError, StampMoved
from holdfast.rules.limits import EDIT_TRIES
from holdfast.rules.order import Stamp
from holdfast.rules.strict_json import strict_json
from holdfast.rules.three_way import merge

_EDITORS: Final = ("sensible-editor", "nano", "vi")


class Edited(NamedTuple):
    """What stands under the key."""

    value: Any
    stamp: Stamp


def edit(
    session: CommandSession,
    read: Callable[[], Edited | None],
    write: Callable[[Any, Stamp], Receipt],
) -> Receipt | None:
    """Lets the user change what `read` gives, and gives it to `write`; None if nothing changed. The
    caller has looked that something is there.
    """
    base = read()
    assert base is not None, "the caller has looked"
    as_text = isinstance(base.value, str)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-edit-"))  # for this user alone
    file = folder / ("value.txt" if as_text else "value.json")
    file.write_text(_shown(base.value, as_text), encoding="utf-8")
    kept = False
    try:
        _run_editor(file)
        ours = _typed(file, as_text)
        if ours == base.value and type(ours) is type(base.value):
            session.talk("nothing was changed")
            return None
        return _written(session, read, write, base, ours)
    except (HoldfastError, OSError) as error:
        kept = True
        hint = f"what you wrote is in {file}"
        if isinstance(error, HoldfastError):
            error.hint = f"{error.hint}; {hint}" if error.hint else hint
        else:
            session.talk(hint)
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _written(
    session: CommandSession,
    read: Callable[[], Edited | None],
    write: Callable[[Any, Stamp], Receipt],
    base: Edited,
    ours: Any,
) -> Receipt:
    """Writes; again on what stands now, as long as others write where we do not."""
    theirs = base
    for _ in range(EDIT_TRIES):
        merged = merge(base.value, theirs.value, ours)
        if merged.clashes:
            raise StampMoved(
                f"{theirs.stamp.peer} changed it meanwhile, in the same place: "
                f"{', '.join(merged.clashes)}",
                present=theirs.stamp,
                hint="look at what stands there now, and edit again",
            )
        try:
            done = write(merged.value, theirs.stamp)
        except StampMoved:
            now = read()
            if now is None:
                raise
            theirs = now
            continue
        if theirs is not base:
            session.talk(f"merged with what {theirs.stamp.peer} wrote meanwhile")
        return done
    raise StampMoved(
        "others write it again and again", present=theirs.stamp, hint="edit again later"
    )


def _run_editor(file: Path) -> None:
    """In the editor that the user has chosen. BadInput if there is none, or it gave up."""
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    editor = shlex.split(chosen) if chosen else [next(filter(shutil.which, _EDITORS), "")]
    if not editor or not editor[0]:
        raise BadInput("no editor is known", hint="name one: export EDITOR=nano")
    try:
        code = subprocess.run([*editor, str(file)], check=False).returncode
    except OSError as error:
        raise BadInput(
            f"the editor {editor[0]!r} did not start: {error.strerror}",
            hint="name another one in $EDITOR",
        ) from None
    if code != 0:
        raise BadInput(
            f"the editor ended with {code}: nothing was written", hint="name one in $EDITOR"
        )


def _shown(value: Any, as_text: bool) -> str:
    text = value if as_text else json.dumps(value, indent=2, ensure_ascii=False)
    return text if text.endswith("\n") else f"{text}\n"


def _typed(file: Path, as_text: bool) -> Any:
    """What stands in the file now. The end of line that an editor adds is not part of a text."""
    try:
        text = file.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadInput("that is not UTF-8 text") from None
    if as_text:
        return text.removesuffix("\n")
    return strict_json(text.encode(), "it")
