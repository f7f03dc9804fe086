"""Words between processes."""

from __future__ import annotations

import asyncio
import socket

from holdfast.broker.processes.line import ProcessLine
from holdfast.broker.processes.words import Load, ProcessReply, Question, Ready, Reload, Stop, Word
from holdfast.rules import limits

WORDS: list[Word] = [
    Ready(),
    Load(3, 7),
    Question(1, 2, 3, "standing", b"\0" * 100_000),
    ProcessReply(1, 2, None),
    ProcessReply(1, 2, b""),
    Stop(),
    Reload(),
]


def test_D1_words_arrive_whole_and_in_order_and_the_end_is_heard() -> None:
    async def run() -> None:
        one, other = socket.socketpair()
        here, there = await ProcessLine.of(one), await ProcessLine.of(other)
        for word in WORDS:
            here.say(word)
        assert [await there.hear() for _ in WORDS] == WORDS
        here.close()
        assert await there.hear() is None
        there.close()

    asyncio.run(run())


def test_D1_nobody_fills_the_memory_of_a_process_that_does_not_listen() -> None:
    async def run() -> None:
        one, other = socket.socketpair()
        here, there = await ProcessLine.of(one), await ProcessLine.of(other)
        big = Question(1, 2, 3, "metrics", bytes(limits.PROCESS_WORD_BYTES_MAX // 4))
        for _ in range(20):
            here.say(big)
        waiting = here._writer.transport.get_write_buffer_size()
        assert waiting <= limits.PROCESS_WORD_BYTES_MAX
        here.close()
        there.close()

    asyncio.run(run())
