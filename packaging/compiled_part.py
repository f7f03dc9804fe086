"""The build step that compiles `src/holdfast/rules/_compiled.c`, if this machine can.

Holdfast is whole without it. So whatever is missing or goes wrong here ends in one line that says
so, and in a wheel for every platform; where it was compiled the wheel is for this one, and for
every Python from 3.11 on. An editable install gets the file beside its source.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOM = Path("src/holdfast/rules")
NAME = "_compiled.abi3.so"


class CannotCompile(Exception):
    """Why there is no compiled part."""


class CompiledPart(BuildHookInterface[Any]):
    """What hatchling calls."""

    _drafts: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        self._drafts = tempfile.TemporaryDirectory(prefix="holdfast-build-")
        room, made = Path(self.root) / ROOM, Path(self._drafts.name) / NAME
        try:
            compile_part(room / "_compiled.c", made)
        except CannotCompile as why:
            if version == "editable":
                (room / NAME).unlink(missing_ok=True)
            self.app.display_warning(f"Holdfast will run as pure Python: {why}")
            return
        if version == "editable":
            # Beside it and renamed: a process that has it open keeps what it has.
            draft = room / f"{NAME}.{os.getpid()}.so"
            shutil.copyfile(made, draft)
            draft.replace(room / NAME)
            return
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["force_include"][str(made)] = f"holdfast/rules/{NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._drafts is not None:
            self._drafts.cleanup()


def compile_part(source: Path, made: Path) -> None:
    if os.name != "posix" or sys.implementation.name != "cpython":
        raise CannotCompile("it is compiled for CPython on Linux and macOS only")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotCompile("this Python has no stable ABI")
    linked = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    given = shlex.split(os.environ.get("CC", ""))
    words = [*(given or linked[:1]), *linked[1:]]
    if not words or shutil.which(words[0]) is None:
        raise CannotCompile("there is no C compiler")
    paths = {sysconfig.get_path(name) for name in ("include", "platinclude")}
    options = ["-O2", "-fPIC", *(f"-I{path}" for path in sorted(paths))]
    try:
        done = subprocess.run(
            [*words, *options, str(source), "-o", str(made)], capture_output=True, text=True
        )
    except OSError as error:
        raise CannotCompile(f"{words[0]} cannot be run: {error}") from None
    if done.returncode or not made.exists():
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotCompile(f"{words[0]} failed: {said[0] if said else 'it says not why'}")
