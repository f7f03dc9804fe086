"""Run the tests again and again with fresh seeds until the time is up or something fails.

    SOAK_HOURS=8 make soak                         everything
    SOAK_HOURS=2 make soak ARGS="-k S3"            one proof
    HOLDFAST_SEED=1700000042 make soak             the seed that failed, and those after it

Every round has one seed. It feeds hypothesis and every test that draws its runs from
`support.seeds`, so the number printed at a failure is all that a replay needs. A world that fails
also prints a shorter command, which plays that world alone:

    python -m holdfast.simulate nodes 1700000042
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_SECONDS_MAX = 2 * 3600
SEED_FACTOR = "20"
LOAD_S = "600"
"""How long a load goes on whose memory and files are watched."""


def soak_round(seed: int, arguments: list[str]) -> int:
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "auto",
        "--maxprocesses=8",
        "--dist=worksteal",
    ]
    limits = [f"--timeout={TEST_SECONDS_MAX}", "-o", f"faulthandler_timeout={TEST_SECONDS_MAX}"]
    environment = {
        "HOLDFAST_SEED_FACTOR": SEED_FACTOR,
        "HOLDFAST_LOAD_S": LOAD_S,
        **os.environ,
        "HOLDFAST_HYPOTHESIS_PROFILE": "soak",
        "HOLDFAST_SEED": str(seed),
    }
    command = [*pytest, *limits, f"--hypothesis-seed={seed}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    hours = float(os.environ.get("SOAK_HOURS", "1"))
    first = int(os.environ.get("HOLDFAST_SEED", str(int(time.time()))))
    ends_at = time.monotonic() + hours * 3600
    rounds = 0
    while rounds == 0 or time.monotonic() < ends_at:
        seed = first + rounds
        print(f"soak: round {rounds + 1}, seed {seed}", flush=True)
        code = soak_round(seed, sys.argv[1:])
        if code != 0:
            print(
                f"soak: seed {seed} failed; again with: HOLDFAST_SEED={seed} SOAK_HOURS=0 make soak"
            )
            return code
        rounds += 1
    print(f"soak: {rounds} rounds in {hours:g} h, nothing failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
