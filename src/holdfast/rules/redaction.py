"""What must not stand in a log: a text without the secrets in it.

Our own errors repeat no secret. But what is logged may hold texts of others: an error of a library
with its address, a warning with the line of a program, a trace.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.rules.invites import PREFIX
from holdfast.rules.keys import TOKEN_PREFIX

HIDDEN: Final = "…"

_SECRETS: Final = (
    # Tokens, and invites with the secret in them: recognised by their beginning.
    re.compile(rf"(?P<kept>{re.escape(TOKEN_PREFIX)}|{re.escape(PREFIX)})[\w-]+"),
    # The password of an address, as in a DSN.
    re.compile(r"(?P<kept>\b[a-zA-Z][\w+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)"),
    # As headers, settings and queries name them.
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic) +)[\w.~+/=-]{8,}"),
    re.compile(
        r"(?i)(?P<kept>\b\w*(?:password|passwd|secret|token|api_?key|authorization)['\"]?\s*[=:]\s*"
        r"['\"]?)(?!bearer |basic )[^\s'\"&,;]+"
    ),
)


def without_secrets(text: str) -> str:
    """The text, with `…` where a secret was."""
    for secret in _SECRETS:
        text = secret.sub(rf"\g<kept>{HIDDEN}", text)
    return text
