"""S9: which names a shared file may have."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.rules.errors import BadPath
from holdfast.rules.limits import PATH_CHARS_MAX
from holdfast.rules.paths import check_path, check_place

GOOD = [
    "a",
    "notes.txt",
    "src/main.py",
    "a b (copy) + 1-2_3.tar.gz",
    "...",
    "..a/b..",
    ".hidden/.x",
    "a/...",
    " leading and trailing ",
    "x" * PATH_CHARS_MAX,
]

BAD = [
    ("", "empty"),
    ("x" * (PATH_CHARS_MAX + 1), "1025 characters"),
    ("a\0b", "NUL"),
    ("/etc/passwd", "absolute"),
    ("//host/share", "absolute"),
    ("/", "absolute"),
    ("a\\b", "backslash"),
    ("..", "'..' part"),
    ("../a", "'..' part"),
    ("a/../b", "'..' part"),
    ("a/..", "'..' part"),
    (".", "'.' part"),
    ("./a", "'.' part"),
    ("a/./b", "'.' part"),
    ("a/.", "'.' part"),
    ("a//b", "empty part"),
    ("a/", "ends with a slash"),
    ("a/../", "ends with a slash"),
    ("a\n", "U+000A"),
    ("\na", "U+000A"),
    ("a\tb", "U+0009"),
    ("a:b", "U+003A"),
    ("a*", "U+002A"),
    ("~/a", "U+007E"),
    ("größe", "U+00F6"),
    ("٣", "U+0663"),
    ("a\u2028", "U+2028"),
    ("a\udc80", "U+DC80"),
    ("🌲", "U+1F332"),
]


@pytest.mark.parametrize("path", GOOD)
def test_S9_a_good_path_comes_back_unchanged(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(("path", "reason"), BAD)
def test_S9_a_bad_path_is_refused_with_its_reason(path: str, reason: str) -> None:
    with pytest.raises(BadPath, match=re.escape(reason)) as caught:
        check_path(path)
    assert caught.value.hint


# The source's rules as patterns, ours being written without any.
CHARACTERS = re.compile(r"[\w. \-/+()]+", re.ASCII)
DOTS = re.compile(r"(^|/)\.\.?(\Z|/)")


@given(st.text(alphabet="ab./\\ \n+(é", max_size=8) | st.text(max_size=20))
@example("a/b")
@example("a\n")
def test_S9_the_rules_agree_with_their_statement_as_patterns(path: str) -> None:
    allowed = (
        0 < len(path) <= PATH_CHARS_MAX
        and CHARACTERS.fullmatch(path) is not None
        and DOTS.search(path) is None
        and not path.startswith("/")
        and not path.endswith("/")
        and "//" not in path
    )
    try:
        check_path(path)
    except BadPath:
        assert not allowed
    else:
        assert allowed


@pytest.mark.parametrize("text", ["", "a\0b", "\udcff", "/home/\udcfe/x"])
def test_S1_a_place_on_the_disk_is_text_that_every_library_takes(text: str) -> None:
    with pytest.raises(BadPath) as refused:
        check_place(text, "the folder")
    assert refused.value.hint
    assert check_place("/home/ümlaut", "the folder") == "/home/ümlaut"
