"""An object store as a file system of Arrow, reached by the client that deltalake has for it.

So the Delta log, the Parquet files and the small files of a lake go through one client, with one
set of options and one way to find credentials, and every store that deltalake knows works for all
of them (docs/decisions/0047).

`StoreFiles` mends what that client's own Arrow bridge leaves open: it takes buffers to write, never
uploads a part that S3 would refuse as too small, and turns the client's errors into ours, also
those that come up in the middle of a Parquet scan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from holdfast.pipeline.lake.location import Location
from holdfast.pipeline.lake.storage_options import StorageOptions
from holdfast.rules.errors import HoldfastError, JobFailed, NoBucket, PlaceDenied, Unreachable

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_ANSWER: Final = re.compile(r"<\?xml.*", re.DOTALL)
_SAID: Final = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|bucket .*exist")
_DENIED: Final = re.compile(
    r"\b40[13] |privileges|[Cc]redential|Unauthenticated|AccessDenied|SignatureDoesNotMatch"
)
_AWAY: Final = re.compile(
    r"error sending request|[Cc]onnect|timed out|timeout|dns error|NameNode|defaultFS|5\d\d [A-Z]"
)
_CHARS_MAX: Final = 400


def open_store(location: Location, options: StorageOptions) -> pyarrow.fs.FileSystem:
    """The file system of the bucket in which a place lies. A process has one for each bucket, since
    each keeps connections; one of a parent process is not used after a fork.
    """
    return _opened(os.getpid(), location.store, tuple(sorted(options.items())))


@lru_cache(maxsize=16)
def _opened(process: int, store: str, pairs: tuple[tuple[str, str], ...]) -> pyarrow.fs.FileSystem:
    options = StorageOptions(pairs)
    with store_errors(store, options):
        return pyarrow.fs.PyFileSystem(StoreFiles(store, options))


class StoreFiles(DeltaStorageHandler):
    """The files of one bucket, as Arrow asks for them."""

    def __init__(self, store: str, options: StorageOptions) -> None:
        super().__init__(store, dict(options))
        self._store, self._options = store, options

    def __reduce__(self) -> Any:
        return StoreFiles, (self._store, self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreFiles) and (self._store, self._options) == (
            other._store,
            other._options,
        )

    __hash__ = None  # type: ignore[assignment]

    def get_file_info(self, paths: list[str]) -> list[Any]:
        with self._errors():
            return list(super().get_file_info(paths))

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        with self._errors():
            return list(super().get_file_info_selector(selector))

    def delete_file(self, path: str) -> None:
        with self._errors():
            super().delete_file(path)

    def delete_dir(self, path: str) -> None:
        with self._errors():
            super().delete_dir(path)

    def open_input_file(self, path: str) -> Any:
        with self._errors():
            source = self._handler.open_input_file(path)
        return pa.PythonFile(_Input(source, self._errors), mode="r")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any = None) -> Any:
        return pa.PythonFile(self.draft(path), mode="w")

    def draft(self, path: str) -> StoreDraft:
        """A file that appears when its draft is closed, and never if it is dropped."""
        with self._errors():
            return StoreDraft(self._handler.open_output_stream(path, None), self._errors)

    def _errors(self) -> Any:
        return store_errors(self._store, self._options)


class _Input:
    """A file that is read by ranges."""

    def __init__(self, source: Any, errors: Any) -> None:
        self._source, self._errors = source, errors
        self.closed = False

    def read(self, count: int | None = None) -> bytes:
        with self._errors():
            return bytes(self._source.read(count if count is None or count >= 0 else None))

    def seek(self, offset: int, whence: int = 0) -> int:
        # The client takes an offset from the end as one from the beginning when it checks it.
        at = {0: 0, 1: self._source.tell(), 2: self._source.size()}[whence] + offset
        return int(self._source.seek(at, 0))

    def tell(self) -> int:
        return int(self._source.tell())

    def size(self) -> int:
        return int(self._source.size())

    def close(self) -> None:
        self.closed = True
        self._source.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class StoreDraft:
    """A file on its way. It appears under its name when it is closed."""

    def __init__(self, target: Any, errors: Any) -> None:
        self._target, self._errors = target, errors
        self.closed = False
        self._written = 0

    def write(self, data: Any) -> int:
        raw = bytes(data)
        with self._errors():
            self._target.write(raw)
        self._written += len(raw)
        return len(raw)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Nothing: parts are uploaded as they fill, and only the last may be small."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._errors():
                self._target.close()

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


@contextmanager
def store_errors(place: str, options: StorageOptions) -> Iterator[None]:
    """Turns errors of the client that are raised in the block into ours. A file that is not there
    stays FileNotFoundError.
    """
    try:
        yield
    except FileNotFoundError as error:
        if _NO_BUCKET.search(str(error)):
            raise store_failure(error, place, options) from None
        raise
    except (OSError, DeltaError) as error:
        raise store_failure(error, place, options) from None


def store_failure(error: Exception, place: str, options: StorageOptions) -> HoldfastError:
    """An error of the client as one of ours, in one sentence and without secrets."""
    text = _sentence(options.without_secrets(str(error)))
    if _NO_BUCKET.search(text):
        return NoBucket(f"{place} lies in a bucket or container that is not there: {text}")
    if _DENIED.search(text):
        return PlaceDenied(f"{place} does not accept the credentials: {text}")
    if _AWAY.search(text):
        return Unreachable(
            f"{place} cannot be reached: {text}", hint="check the endpoint, the region, the network"
        )
    return JobFailed(f"{place} did not do what it was asked: {text}")


def _sentence(text: str) -> str:
    """What the client says, without its colours, lines and XML."""
    text = _COLOUR.sub("", text)
    match = _SAID.search(text)
    said = "" if match is None else ": ".join(part for part in match.groups() if part)
    text = _ANSWER.sub(lambda _: said, text)
    text = ", ".join(line.strip(" \t↳") for line in text.splitlines() if line.strip(" \t↳"))
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
