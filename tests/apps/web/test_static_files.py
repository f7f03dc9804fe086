"""What others have written is what they published, and says whose it is."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import holdfast.apps.web

FOLDER = Path(holdfast.apps.web.__file__).parent / "static"
OURS = {"board.js", "console.css", "console.js", "plots.js", "upload.js", "mark.svg", "NOTICE"}


def test_U5_what_others_have_written_is_unchanged_and_named_with_its_licence() -> None:
    notice = (FOLDER / "NOTICE").read_text()
    named = dict(re.findall(r"(?ms)^(\S+\.min\.\w+) .*?sha256 ([0-9a-f]{64})$", notice))
    assert set(named) == {path.name for path in FOLDER.iterdir()} - OURS
    for name, digest in named.items():
        assert sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert "Zero-Clause BSD" in notice
    assert "MIT License" in notice


def test_U5_no_file_and_no_template_names_another_host() -> None:
    own = [path for path in FOLDER.iterdir() if path.name in OURS - {"NOTICE"}]
    templates = list((FOLDER.parent / "templates").iterdir())
    assert len(templates) > 5
    for path in (*own, *templates):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?i)(https?:)?//[a-z0-9-]+\.[a-z]", text), path.name
