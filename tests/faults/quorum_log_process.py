"""A process that votes and appends in two groups, and prints each write when it is safe, until it
is killed.

    python quorum_log_process.py HOME
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.quorum_logs import TAG, entry, opened, write


def main(home: Path) -> None:
    log = opened(home, mark_writes=7)
    scopes = ("one", "two")
    for scope in scopes:
        if scope not in {group.scope for group in log.groups()}:
            log.init(scope, tag=TAG, voter=1, config=b"voters")
    while True:
        for scope in scopes:
            head = log.head(scope)
            number, term = head.written + 1, head.term
            if number % 5 == 1:
                log.save(write(number, scope=scope, term=term + 1, vote=number))
            else:
                new = [entry(head.last + at, term) for at in (1, 2)]
                log.save(
                    write(number, *new, scope=scope, term=term, vote=head.vote, commit=head.last)
                )
            if number % 20 == 0:
                log.compact(scope, head.last, b"voters")
            saved = log.head(scope)
            print(scope, saved.written, saved.term, saved.vote, saved.last, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
