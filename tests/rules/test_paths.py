"""S9: which names a shared file may have."""

from __future__ import annotations

import re
from unicodedata import is_normalized, normalize

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.rules.errors import BadPath
from holdfast.rules.limits import PATH_BYTES_MAX
from holdfast.rules.paths import HIDDEN, check_path, check_place, named_path

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
    "größe/Übersicht (2).txt",
    "文書/報告書.pdf",
    "🌲👩\u200d🌾",  # a joiner holds the second one together
    "\u0645\u06cc\u200c\u062e",  # Persian writes with a mark between letters
    "٣/٤",
    "\U000323af",  # a character of a later Unicode than ours
    "é" * (PATH_BYTES_MAX // 2),
    "x" * PATH_BYTES_MAX,
]

BAD = [
    ("", "empty"),
    ("x" * (PATH_BYTES_MAX + 1), "1025 bytes"),
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
    ("é" * (PATH_BYTES_MAX // 2) + "a", "1025 bytes"),
    ("a\u2028", "U+2028"),
    ("a\u0085", "U+0085"),
    ("exe\u202egpj.txt", "U+202E"),
    ("\ufeffa", "U+FEFF"),
    ("a\u200b", "U+200B"),
    ("a\uffff", "U+FFFF"),
    ("a\u2215b", "U+2215"),
    ("a\uff0fb", "U+FF0F"),
    ("a\udc80", "U+DC80"),
    ("é/..", "'..' part"),
    ("é\\", "backslash"),
    ("e\u0301", "not NFC-normalised"),
    ("\u212b", "not NFC-normalised"),
]


@pytest.mark.parametrize("path", GOOD)
def test_S9_a_good_path_comes_back_unchanged(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(("path", "reason"), BAD)
def test_S9_a_bad_path_is_refused_with_its_reason(path: str, reason: str) -> None:
    with pytest.raises(BadPath, match=re.escape(reason)) as caught:
        check_path(path)
    assert caught.value.hint


# The rules as patterns, ours being written without any.
CHARACTERS = re.compile(r"([\w. \-/+()]|[^\x00-\x7f])+", re.ASCII)
DOTS = re.compile(r"(^|/)\.\.?(\Z|/)")


@given(st.text(alphabet="ab./\\ \n+(é\u0301\u202e", max_size=8) | st.text(max_size=20))
@example("a/b")
@example("a\n")
def test_S9_the_rules_agree_with_their_statement_as_patterns(path: str) -> None:
    allowed = (
        0 < len(path) <= PATH_BYTES_MAX
        and CHARACTERS.fullmatch(path) is not None
        and DOTS.search(path) is None
        and not path.startswith("/")
        and not path.endswith("/")
        and "//" not in path
        and is_normalized("NFC", path)
        and not HIDDEN & set(path)
        and not re.search("[\ud800-\udfff]", path)
    )
    try:
        check_path(path)
    except BadPath:
        assert not allowed
    else:
        assert allowed


@given(st.text(max_size=12))
def test_S9_a_name_in_another_form_names_the_same_file(text: str) -> None:
    composed, apart = normalize("NFC", text), normalize("NFD", text)
    try:
        named = check_path(composed)
    except BadPath:
        return
    assert named_path(apart) == named_path(text) == named


@pytest.mark.parametrize("text", ["", "a\0b", "\udcff", "/home/\udcfe/x"])
def test_S1_a_place_on_the_disk_is_text_that_every_library_takes(text: str) -> None:
    with pytest.raises(BadPath) as refused:
        check_place(text, "the folder")
    assert refused.value.hint
    assert check_place("/home/ümlaut", "the folder") == "/home/ümlaut"
