"""What tests cost is counted once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from support.costs import children, cpu_s

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_a_thread_that_has_ended_takes_no_child_of_others_along() -> None:
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert ended.native_id is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        threads = [str(ended.native_id), *os.listdir("/proc/self/task")]
        assert child.pid in children(os.getpid(), threads)
        child.communicate(b"\n")


def test_a_child_costs_the_same_before_and_after_it_was_waited_for() -> None:
    pipe = subprocess.PIPE
    before = cpu_s()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = cpu_s() - before
        child.communicate(b"\n")
    ended = cpu_s() - before
    assert 0.25 < running <= ended + 0.05
    assert ended < 2 * running
