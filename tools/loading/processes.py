"""The processes of a load: how the driver starts them, gives them words, and kills them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PATIENCE_S: Final = 120


class Child:
    """A process that prints lines of JSON and obeys words. It may be started again and again."""

    def __init__(self, name: str, words: list[str], errors: Path, **environment: str) -> None:
        self.name, self._words, self._errors = name, words, errors
        self._environment = {**os.environ, "PYTHONPATH": _paths(), **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.pid = 0
        self.status: dict[str, Any] = {}
        """How it stood by its last line, and when that came."""
        self.status_at = 0.0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when it is ready."""
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._words],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._answers = queue.Queue()
        threading.Thread(
            target=self._hear, args=(self._process, self._answers), daemon=True
        ).start()
        ready = self._answers.get(timeout=PATIENCE_S)
        if ready.get("event") != "ready":
            raise RuntimeError(f"{self.name} did not start: {self.errors()}")
        self.lives += 1
        self.pid = ready["pid"]

    def tell(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def ask(self, word: str) -> dict[str, Any]:
        """Gives it a word and returns its answer, for a process that answers each word."""
        self.tell(word)
        answer = self._answers.get(timeout=PATIENCE_S)
        if not answer:
            raise RuntimeError(f"{self.name} died of {word!r}: {self.errors()}")
        return answer

    def kill(self) -> None:
        """Ends it at once, as a power loss would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def end(self) -> None:
        """Ends it well; raises if its exit code says otherwise."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(PATIENCE_S)
        if code != 0:
            raise RuntimeError(f"{self.name} ended with {code}: {self.errors()}")

    def close(self) -> None:
        """Kills it if it still runs, however the load ended."""
        if self.is_up:
            self.kill()

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]

    def _hear(self, process: subprocess.Popen[bytes], answers: queue.Queue[dict[str, Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            document = json.loads(line)
            self.status_at = monotonic()
            if "written" in document:
                self.status = document
            else:
                answers.put(document)
        answers.put({})
        process.stdout.close()


def _paths() -> str:
    return os.pathsep.join([str(ROOT / "src"), str(ROOT)])
