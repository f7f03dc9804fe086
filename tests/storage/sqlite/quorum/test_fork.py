"""A forked child can use nothing of the Raft logs that its parent has open, and takes no lock
away.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.quorum_logs import opened

PROGRAM = """
import os, sys
from pathlib import Path
from support.quorum_logs import entry, filled, opened, write
home = Path(sys.argv[1])
log = opened(home)
filled(log, 1)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    log.save(write(2, entry(2, 1)))
    assert log.head("team").last == 2
    try:
        opened(home)
    except Exception as error:
        print(type(error).__name__)
    log.close()
else:
    for call in (lambda: log.head("team"), lambda: log.save(write(2)), lambda: opened(home)):
        try:
            call()
        except Exception as error:
            if type(error).__name__ not in ("ProcessForked", "StoreBusy"):
                os._exit(2)
        else:
            os._exit(1)
    log.close()
    os._exit(0)
"""

AFTER_CLOSE = """
import os, sys
from pathlib import Path
from support.quorum_logs import opened
home = Path(sys.argv[1])
log = opened(home)
log.close()
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    opened(home).close()
    os._exit(0)
"""


def _run(program: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, "-c", program, str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )


def test_Q4_a_forked_child_opens_raft_logs_that_its_parent_has_closed(tmp_path: Path) -> None:
    ran = _run(AFTER_CLOSE, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


def test_Q4_a_forked_child_cannot_use_the_raft_logs_of_its_parent(tmp_path: Path) -> None:
    ran = _run(PROGRAM, tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "StoreBusy\n"), ran.stderr
    log = opened(tmp_path)
    assert (log.head("team").last, log.group("team").standing) == (2, "voter")
    log.close()
