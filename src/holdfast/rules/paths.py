"""Which names a shared file may have.

A path is a name in the mesh, the same on every machine that reads it, and one day a user will
write the file below a folder. So it must be relative, must not climb, must mean one thing
only, and must consist of characters that every file system takes. Letters are ASCII letters: two
Unicode spellings of one visible name would be two files here and one file on a disk that
normalises.
"""

from __future__ import annotations

from typing import Final

from holdfast.rules.errors import BadPath
from holdfast.rules.limits import PATH_CHARS_MAX

ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_. -/+()")


def check_path(path: str) -> str:
    """Return `path` unchanged if it may name a shared file, else raise BadPath with the reason."""
    if not isinstance(path, str):
        raise BadPath(f"the path is {type(path).__name__}, not text")
    if not path:
        raise BadPath("the path is empty")
    if len(path) > PATH_CHARS_MAX:
        raise BadPath(f"the path has {len(path)} characters; at most {PATH_CHARS_MAX} are allowed")
    if "\0" in path:
        raise BadPath("the path contains a NUL byte")
    if path.startswith("/"):
        raise BadPath(f"the path {path!r} is absolute; shared files have relative paths")
    if "\\" in path:
        raise BadPath(f"the path {path!r} contains a backslash; separate folders with /")
    if path.endswith("/"):
        raise BadPath(f"the path {path!r} ends with a slash; it must name a file, not a folder")
    for part in path.split("/"):
        _check_part(part, path)
    # Character by character and not by a pattern: `$` would let a trailing newline through, and
    # this way the message can name the culprit.
    for char in path:
        if char not in ALLOWED:
            raise BadPath(f"the path {path!r} contains {char!r} (U+{ord(char):04X})")
    return path


def _check_part(part: str, path: str) -> None:
    if part == "..":
        raise BadPath(f"the path {path!r} climbs with a '..' part")
    if part == ".":
        raise BadPath(f"the path {path!r} has a '.' part; leave it out")
    if not part:
        raise BadPath(f"the path {path!r} has an empty part between two slashes")


def check_place(text: str, what: str) -> str:
    """The path of a folder or file of ours on this machine: text that is UTF-8, since SQLite and
    Arrow take no other names.
    """
    if not text or "\0" in text:
        raise BadPath(f"{what} is {text!r}", hint="name a folder")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadPath(
            f"{what} is not UTF-8: {text!r}", hint="rename the folder, or choose another"
        ) from None
    return text
