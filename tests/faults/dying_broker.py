"""The `holdfast` command, which kills itself when a broker passes a named point for the n-th time.

    python dying_broker.py "commit: before" 3 broker serve --json --store FOLDER --tcp 127.0.0.1:0

The points are laid around real functions here, in the child, as in `dying_daemon`.
"""

from __future__ import annotations

import sys

from faults.dying_daemon import POINTS, lay
from holdfast.apps.cli.main import main
from holdfast.broker import connection
from holdfast.storage.broker.sqlite import accept, database, mark

POINTS |= {
    "insert": (accept, "insert_messages"),
    "commit": (database.BrokerDatabase, "_commit"),
    "answer": (connection.Connection, "_flush"),
    "mark": (mark, "durable_replace"),
}

if __name__ == "__main__":
    lay(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
