"""Parts of pages are made when something has changed, once for all who look, and not else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest
from starlette.types import Message

from holdfast.apps.web.live import channel as channels
from holdfast.apps.web.live.changes import Changes
from holdfast.apps.web.live.channel import Channels, Onlooker
from holdfast.apps.web.live.stream import LiveParts, message, stream
from holdfast.rules.errors import BadToken, HoldfastError, UnknownMesh
from holdfast.service.http.request import ClientGone
from holdfast.transport.http_protocol import ENDED
from support.daemon import PATIENCE_S


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "CONSOLE_LIVE_MS", 0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def told(onlooker: Onlooker) -> dict[str, str]:
    await onlooker.news.wait()
    return onlooker.take()


def test_U5_parts_are_made_once_for_all_who_look_and_only_when_something_changes() -> None:
    async def work() -> None:
        changes = Changes()
        found = Channels(changes)
        now = {"rows": "1", "head": "x"}

        async def make() -> Mapping[str, str]:
            return dict(now)

        many = [found.join("page", make, ("log",)) for _ in range(100)]
        for one in many:
            assert await told(one) == {"rows": "1", "head": "x"}
        assert found.made == 1
        changes.note("disk")  # it does not wake this page
        now["rows"] = "2"
        changes.note("log")
        for one in many:
            assert await told(one) == {"rows": "2"}
        assert found.made == 2
        late = [found.join("page", make, ("log",)) for _ in range(100)]
        for one in late:
            assert await told(one) == {"rows": "2", "head": "x"}
        assert found.made == 3
        assert not any(one.parts for one in many), "nothing is new to them"
        for one in (*many, *late):
            found.leave("page", one)
        changes.note("log")
        await asyncio.sleep(0)
        assert found.made == 3
        await found.close()

    run(work())


def test_U5_a_page_is_never_sent_what_was_made_before_it_was_opened() -> None:
    """The page before it is still looked at, and its parts are from before what was just done."""

    async def work() -> None:
        changes = Changes()
        found = Channels(changes)
        now = {"stamp": "32", "head": "x"}
        made, go_on = asyncio.Event(), asyncio.Event()
        go_on.set()

        async def make() -> Mapping[str, str]:
            parts = dict(now)
            made.set()
            await go_on.wait()
            return parts

        before = found.join("page", make, ("log",))
        await told(before)
        now["stamp"] = "33"  # written, and not yet counted as a change
        after = found.join("page", make, ("log",))
        assert await told(after) == {"stamp": "33", "head": "x"}

        go_on.clear()
        made.clear()
        changes.note("log")
        await made.wait()
        now["stamp"] = "34"  # written while parts are made
        last = found.join("page", make, ("log",))
        go_on.set()
        assert await told(last) == {"stamp": "34", "head": "x"}
        for one in (before, after, last):
            found.leave("page", one)
        await found.close()

    run(work())


@pytest.mark.parametrize("error", [BadToken("it was dropped"), UnknownMesh("it was deleted")])
def test_U5_who_may_not_look_any_more_is_told_and_sent_nothing(error: HoldfastError) -> None:
    async def work() -> None:
        changes = Changes()
        found = Channels(changes)

        async def make() -> Mapping[str, str]:
            raise error

        onlooker = found.join("page", make, ("log",))
        sent = [
            part async for part in stream(found, "page", onlooker, lambda: True, lambda html: html)
        ]
        assert b"event: gone" in sent[-1]

        async def fine() -> Mapping[str, str]:
            return {"rows": "secret"}

        onlooker = found.join("page", fine, ("log",))
        sent = [
            part async for part in stream(found, "page", onlooker, lambda: False, lambda html: html)
        ]
        assert b"secret" not in b"".join(sent)
        await found.close()

    run(work())


def test_U5_a_closing_service_ends_every_stream() -> None:
    async def work() -> None:
        changes = Changes()
        found = Channels(changes)

        async def make() -> Mapping[str, str]:
            return {"rows": "1"}

        async def listen(onlooker: Onlooker) -> list[bytes]:
            sending = stream(found, "page", onlooker, lambda: True, lambda html: html)
            return [part async for part in sending]

        onlooker = found.join("page", make, ("log",))
        listening = asyncio.create_task(listen(onlooker))
        await asyncio.sleep(0)
        await found.close()
        assert b"event: gone" not in b"".join(await listening)

    run(work())


def test_U5_a_part_is_one_message_whatever_lines_it_has() -> None:
    sent = message({"rows": "a\r\nb\rc\n\nd"}, lambda html: html.replace("d", "D"))
    lines = sent.decode().removesuffix("\n\n").split("\n")
    assert all(line.startswith("data: ") for line in lines)
    assert lines[0] == 'data: <hx-partial hx-target="#live-rows" hx-swap="innerMorph">a'
    assert lines[-1] == "data: D</hx-partial>"


def test_U5_a_browser_that_goes_before_its_answer_begins_is_forgotten() -> None:
    async def work() -> None:
        found = Channels(Changes())

        async def make() -> Mapping[str, str]:
            return {"rows": "1"}

        async def receive() -> Message:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        async def send(message: Message) -> None:
            raise ClientGone

        onlooker = found.join("page", make, ("log",))
        sending = stream(found, "page", onlooker, lambda: True, str)
        answer = LiveParts(onlooker, sending, {}, lambda: found.leave("page", onlooker))
        with pytest.raises(ClientGone):
            await answer({ENDED: lambda: False}, receive, send)
        assert not found._channels
        await found.close()

    run(work())
