"""Contexts: names for homes, daemons and brokers, so that nobody types addresses and tokens.

    <the platform's configuration folder>/holdfast/contexts/     0700
        plant.json                                               0600, a token may be in it
        in-use                                                   the name of the one in use

`$HOLDFAST_CONTEXTS` names another folder. `in_force` decides which context a command works in.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from holdfast.rules import limits
from holdfast.rules.errors import AlreadyExists, BadInput, StoreCorrupt, UnknownContext
from holdfast.rules.names import check_mesh
from holdfast.rules.nearest import nearest
from holdfast.storage.files.durable import FILE_MODE, alone_in, durable_replace, make_folder

Kind = Literal["home", "daemon", "broker"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_IN_USE: Final = "in-use"
_END: Final = ".json"
_LOG = logging.getLogger(__name__)


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place to work in."""

    kind: Kind
    place: str
    """The folder of a home, or an address."""
    token: str = ""
    ca: str = ""
    """A file with the certificates to trust; empty for those that authorities vouch for."""
    card: str = ""
    """Whose daemon or broker it is."""


class InForce(NamedTuple):
    """Which context a command works in, and why."""

    name: str
    why: str


class Contexts:
    """The contexts of this user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """All of them, in order."""
        try:
            found = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_END) for name in found if _is_file_of_one(name))

    def get(self, name: str) -> Context:
        """UnknownContext if there is none of this name."""
        path = self._path(name)
        if not os.path.lexists(path):
            near = nearest(name, self.names())
            raise UnknownContext(
                f"there is no context {name!r}",
                hint="see: holdfast context list"
                if near is None
                else f"did you mean {near!r}? see: holdfast context list",
            )
        try:
            return msgspec.json.decode(self._read(path), type=Context)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise StoreCorrupt(
                f"the context {name!r} cannot be read: {_said(error)}",
                hint=f"make it again: holdfast context remove {name}",
            ) from None

    def add(self, name: str, context: Context, *, replace: bool = False) -> None:
        """AlreadyExists if the name is taken and is not to be replaced."""
        path = self._path(name)
        for folder in (*reversed(self.folder.parents), self.folder):
            if not folder.exists():
                make_folder(folder)
        with alone_in(self.folder):
            if os.path.lexists(path) and not replace:
                raise AlreadyExists(
                    f"there is a context {name!r} already", hint="say --replace, or take another"
                )
            _refuse_folder(path)
            durable_replace(path, msgspec.json.encode(context))

    def remove(self, name: str) -> None:
        """UnknownContext if there is none. One that is in use is in use no longer."""
        self.get_or_damaged(name)
        _refuse_folder(self._path(name))
        with alone_in(self.folder):
            if self.in_use() == name:
                (self.folder / _IN_USE).unlink(missing_ok=True)
            self._path(name).unlink(missing_ok=True)

    def get_or_damaged(self, name: str) -> Context | None:
        """The context; None if it is there and cannot be read. UnknownContext if it is not."""
        try:
            return self.get(name)
        except StoreCorrupt:
            return None

    def use(self, name: str | None) -> None:
        """From now on commands that name no place work in this one; with None in none."""
        if name is None:
            (self.folder / _IN_USE).unlink(missing_ok=True)
            return
        self.get(name)
        durable_replace(self.folder / _IN_USE, f"{name}\n".encode())

    def in_use(self) -> str | None:
        path = self.folder / _IN_USE
        try:
            return self._read(path).decode().strip() or None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreCorrupt(
                f"{path}, which says what context is in use, cannot be read: {_said(error)}",
                hint=f"remove it, then say it again: rm -r {shlex.quote(str(path))}",
            ) from None

    def _path(self, name: str) -> Path:
        try:
            return self.folder / f"{check_mesh(name)}{_END}"
        except BadInput as error:
            raise BadInput(f"{name!r} is no name for a context", hint=error.hint) from None

    def _read(self, path: Path) -> bytes:
        """OSError or ValueError if it is not a file as we write them. What others put here, such as
        a pipe, keeps nobody waiting. Others may not read what may hold a token: a mode that has
        drifted is mended, aloud.
        """
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is neither a file nor a folder")
            mode = stat.S_IMODE(status.st_mode)
            if mode & ~FILE_MODE:
                os.fchmod(file.fileno(), FILE_MODE)
                _LOG.warning("%s was open to others (%03o); it is not any more", path, mode)
            raw = file.read(limits.CONTEXT_FILE_BYTES_MAX + 1)
        if len(raw) > limits.CONTEXT_FILE_BYTES_MAX:
            raise ValueError(f"it is longer than {limits.CONTEXT_FILE_BYTES_MAX} bytes")
        return raw


def contexts_of(environ: Mapping[str, str]) -> Contexts:
    """Those of this user."""
    named = environ.get("HOLDFAST_CONTEXTS", "")
    if named:
        return Contexts(Path(named).absolute())
    import platformdirs

    return Contexts(Path(platformdirs.user_config_dir("holdfast", appauthor=False)) / "contexts")


def in_force(named: str | None, contexts: Contexts, environ: Mapping[str, str]) -> InForce | None:
    """The context that counts where no home was named by an option: the one named, else none if
    $HOLDFAST_HOME names a home, else that of $HOLDFAST_CONTEXT, else the one in use.
    """
    if named:
        return InForce(named, "--context")
    if environ.get("HOLDFAST_HOME"):
        return None
    if by_environment := environ.get("HOLDFAST_CONTEXT"):
        return InForce(by_environment, "$HOLDFAST_CONTEXT")
    in_use = contexts.in_use()
    return None if in_use is None else InForce(in_use, "holdfast context use")


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _refuse_folder(path: Path) -> None:
    """We made none here, and do not know what is in it."""
    if path.is_dir():
        raise StoreCorrupt(
            f"{path} is a folder, where the file of a context belongs",
            hint=f"see what it is, then: rm -r {shlex.quote(str(path))}",
        )


def _is_file_of_one(name: str) -> bool:
    stem = name.removesuffix(_END)
    return name != stem and 0 < len(stem) <= limits.MESH_SLUG_CHARS_MAX and not stem.startswith(".")
