"""Whatever name can be declared can be used and dropped."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.rules.destinations import REF_CHARS_MAX, check_destination
from holdfast.rules.errors import BadInput
from support.broker_people import Person, broker_up

AT = "/api/my/meshes/team"
ODD = ["/", "//", "a/", "/a", ".", "..", "../x", "a/take", "a/dead", "a/dead/1/revive", "a?b"]
ODD += ["a#b", "%", "%2F", "%00", "a\nb", "a\n", "\r\n", "\u2028", "\x85", "é", "\U0001f600", "a b"]
ODD += ["+", ";x=1", '"']


def is_good(ref: str) -> bool:
    with suppress(BadInput):
        return check_destination("topic", ref) == ("topic", ref)
    return False


names = st.text(min_size=1, max_size=REF_CHARS_MAX).filter(is_good)


@given(st.lists(names, min_size=10, max_size=20))
@example([ref for ref in ODD if is_good(ref)])
@settings(max_examples=2)
def test_D5_whatever_can_be_declared_can_be_used_and_dropped(
    tmp_path_factory: pytest.TempPathFactory, refs: list[str]
) -> None:
    async def run() -> None:
        tmp_path = tmp_path_factory.mktemp("names")
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            for ref in refs:
                named = quote(ref, safe="")
                for kind in ("topic", "queue"):
                    await ana.declare(up, "team", kind, ref)
                put = await ana.ask(up, "PUT", f"{AT}/subscriptions/{named}")
                assert (put.status, put.json["topic"]) == (200, ref)
                gone = await ana.ask(up, "DELETE", f"{AT}/subscriptions/{named}")
                assert (gone.status, gone.json["dropped"]) == (200, True), ref
                queue = f"/v1/meshes/team/queues/{named}"
                raw = ana.message("team", "queue", ref)
                assert (await ana.hand_in(up, "team", raw)).status == 201, ref
                took = await ana.ask(up, "POST", f"{queue}/take", {"most": 1})
                assert took.status == 200, (ref, took.body)
                (one,) = took.json["messages"]
                settled = {"seq": one["seq"], "lease": one["lease"], "how": "done"}
                assert (await ana.ask(up, "POST", f"{queue}/settle", settled)).status == 200
                assert (await ana.ask(up, "GET", f"{queue}/dead")).status == 200, ref
                for kind in ("topic", "queue"):
                    gone = await ana.ask(up, "DELETE", f"{AT}/destinations/{kind}/{named}")
                    assert (gone.status, gone.json) == (200, {"dropped": True}), (kind, ref)
            assert (await ana.ask(up, "GET", f"{AT}/destinations")).json == {"destinations": []}

    asyncio.run(run())
