"""The load from its beginning to its end, with a line of progress now and then."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tools.loading import usage
from tools.loading.field import Field

KEEP_S_MAX = 60.0
KEEP_S_MIN = 2.0
GROWTH_S_MIN = 120.0
"""A shorter load is all beginning."""
ROUGH = 1 / 3
"""So much of the time the broker is killed and restarted; then it lives to the end."""


def run(field: Field, seconds: float, every_s: float) -> None:
    begun = time.monotonic()
    next_trouble = begun + field.keep_s / 4
    next_word = begun + every_s
    while (now := time.monotonic()) < begun + seconds:
        field.mend()
        field.look()
        if now >= next_trouble:
            field.trouble(rough=now - begun < ROUGH * seconds)
            next_trouble = now + field.keep_s / 3
        if now >= next_word:
            say(f"{(now - begun) / 60:6.1f} min  {progress(field)}")
            next_word += every_s
        time.sleep(max(0.0, 1.0 - (time.monotonic() - now)))


def progress(field: Field) -> str:
    anon = " ".join(
        f"{name} {samples[-1].get('anon', 0) / 1e6:.0f}"
        for name, samples in field.samples.items()
        if samples
    )
    hub = field.samples["hub"][-1]
    return (
        f"{field.written:,} written, seq {field.mesh['seq']:,}, lag {field.lag}; "
        f"MB: {anon}; broker: {hub['messages']:,.0f} messages, {hub['dedupe']:,.0f} ids, "
        f"{hub['objects']:,.0f} objects, {hub.get('database', 0) / 1e6:.1f} MB"
    )


def say(line: str) -> None:
    print(line, flush=True)


def postgres(ending: ExitStack) -> str:
    """A server from a wheel, as the bench has it."""
    from bench import _postgres

    where = ending.enter_context(_postgres.server())
    _postgres.make(where, "load")
    return _postgres.dsn(where, "load")


def main() -> int:
    parser = argparse.ArgumentParser(prog="load.py", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=24.0, help="writes a second, of all nodes")
    parser.add_argument("--postgres", action="store_true", help="the broker is on PostgreSQL")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two words")
    parser.add_argument("--folder", type=Path, help="where everything is left for you to look at")
    given = parser.parse_args()
    seconds = given.minutes * 60
    with ExitStack() as ending:
        folder = given.folder
        if folder is None:
            made = ending.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-load-"))
            folder = Path(made)
        field = Field(
            folder.resolve(),
            rate=given.rate,
            keep_s=min(KEEP_S_MAX, max(KEEP_S_MIN, seconds / 8)),
            seed=given.seed,
            dsn=postgres(ending) if given.postgres else None,
        )
        ending.callback(field.close)
        field.begin()
        begun = time.monotonic()
        run(field, seconds, given.every)
        took = time.monotonic() - begun
        field.settle()
        return report(field, took)


def report(field: Field, took_s: float) -> int:
    long_enough = took_s >= GROWTH_S_MIN
    found = field.verdict(with_growth=long_enough)
    for name, samples in field.samples.items() if long_enough else ():
        say("\n".join(usage.table(name, samples)))
    say(", ".join(f"{count:,} {what}" for what, count in sorted(field.happened.items())))
    say(
        f"{found.written:,} written in {took_s / 60:.1f} min, {found.messages:,} messages in "
        f"inboxes, {found.finished:,} of the queue finished; {field.cpu_s:.0f} s of the processor"
    )
    for problem in found.problems:
        say(f"BREACH: {problem}")
    grows = "nothing grows" if long_enough else "too short to tell what grows"
    say("it does not hold" if found.problems else f"nothing lost, nothing twice, {grows}")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
