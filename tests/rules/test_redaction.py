"""What is logged holds no secret."""

from __future__ import annotations

import pytest

from holdfast.rules.invites import PREFIX
from holdfast.rules.keys import token_text
from holdfast.rules.limits import TOKEN_BYTES
from holdfast.rules.redaction import without_secrets

TOKEN = token_text(bytes(range(TOKEN_BYTES)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"the token {TOKEN} is old", "the token hf_… is old"),
        (f"join {PREFIX}AbC-dEf_123 now", f"join {PREFIX}… now"),
        (
            "postgres://ana:s3cr3t@db.example/hub is down",
            "postgres://ana:…@db.example/hub is down",
        ),
        ("password=s3cr3t host=db", "password=… host=db"),
        ('{"api_key": "s3cr3t", "n": 1}', '{"api_key": "…", "n": 1}'),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer …"),
        ("GET /x?access_token=s3cr3t&n=1", "GET /x?access_token=…&n=1"),
        ("AWS_SECRET_ACCESS_KEY is not set", "AWS_SECRET_ACCESS_KEY is not set"),
        ("the broker refuses: not_a_member", "the broker refuses: not_a_member"),
        (
            "a token of 32 bytes; http://db.example:80/a@b",
            "a token of 32 bytes; http://db.example:80/a@b",
        ),
    ],
)
def test_S1_a_text_for_the_log_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
