"""Which names a shared file may have.

A path is a name in the mesh, the same on every machine that reads it, and one day a user will
write the file below a folder. So it must be relative, must not climb, must mean one thing
only, and must consist of characters that file systems take. Of ASCII those are letters, digits,
blanks and a few signs. Beyond it they are all but what is no text, or does not show what it is:
control characters, ends of lines, marks that turn the direction of writing, false slashes.

Two Unicode spellings of one visible name would be two files here and one file on a disk that
normalises. So a path has the form NFC, and another form is refused where it arrives; who shares a
file under a name of another form shares it under the NFC of it (`named_path`). The characters that
are refused are listed, and not looked up in the tables of Unicode: those grow from one version of
Python to the next, and nodes must agree.
"""

from __future__ import annotations

import unicodedata
from itertools import chain
from typing import Final

from holdfast.rules.errors import BadPath
from holdfast.rules.limits import PATH_BYTES_MAX

ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_. -/+()")
"""Of ASCII."""
HIDDEN: Final = frozenset(
    map(
        chr,
        chain(
            range(0x80, 0xA0),  # control characters
            (0xAD, 0x61C, 0x180E, 0xFEFF),  # soft hyphen, marks that show nothing
            (0x200B, 0x200E, 0x200F),  # but not the joiners, without which some scripts cannot be
            range(0x2028, 0x202F),  # ends of lines and paragraphs, directions
            range(0x2060, 0x2070),
            range(0xFDD0, 0xFDF0),  # no characters
            range(0xFFF0, 0xFFFC),
            (plane + last for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF)),
            range(0xE0000, 0xE0100),  # tags that show nothing
            (0x2044, 0x2215, 0x29F8, 0xFF0F),  # what looks like a slash and is none
            (0x2216, 0x29F5, 0xFE68, 0xFF3C),  # nor a backslash
        ),
    )
)
"""Beyond ASCII: characters that no name has."""


def named_path(path: str) -> str:
    """The path under which a node shares or reads a file that its caller names so."""
    if isinstance(path, str) and not path.isascii():
        path = unicodedata.normalize("NFC", path)
    return check_path(path)


def is_path(path: str) -> bool:
    try:
        check_path(path)
    except BadPath:
        return False
    return True


def check_path(path: str) -> str:
    """Return `path` unchanged if it may name a shared file, else raise BadPath with the reason."""
    if not isinstance(path, str):
        raise BadPath(f"the path is {type(path).__name__}, not text")
    if not path:
        raise BadPath("the path is empty")
    if "\0" in path:
        raise BadPath("the path contains a NUL byte")
    size = len(path) if path.isascii() else len(path.encode("utf-8", "surrogatepass"))
    if size > PATH_BYTES_MAX:
        raise BadPath(f"the path has {size} bytes; at most {PATH_BYTES_MAX} are allowed")
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
        if not _is_allowed(char):
            raise BadPath(f"the path {path!r} contains {char!r} (U+{ord(char):04X})")
    if not path.isascii() and not unicodedata.is_normalized("NFC", path):
        raise BadPath(
            f"the path {path!r} is not NFC-normalised",
            hint=f"write it as {unicodedata.normalize('NFC', path)!r}",
        )
    return path


def _is_allowed(char: str) -> bool:
    if char.isascii():
        return char in ALLOWED
    return char not in HIDDEN and not "\ud800" <= char <= "\udfff"


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
