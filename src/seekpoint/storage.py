"""Files of an archive or a checkpoint: in a folder, or in a bucket that ``pyarrow.fs`` reaches by a URL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from seekpoint.errors import ConfigError, needs_extra

_SECRET = re.compile(r"(?i)(?:password|secret|token|key|sig|credential)[^=&]*=")  # abfss://…?client_secret=…, ?sig=…

_OPAQUE = re.compile(r"(?i)([a-z][a-z0-9+.-]+):(/*)(.*)", re.DOTALL)  # at least two characters, because C:/ is a drive
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("abfs", "wasb", "wasbs"), "abfss"
)  # other names that Spark and Hadoop use for the same storage
_AZURE = re.compile(r"(?i)([^@/]+)\.(?:dfs|blob)\.core\.windows\.net")
DBFS = "/dbfs"  # the folder in which Databricks shows dbfs:/


def named(root: str | Path) -> str:
    """The root as an absolute path, or a URL without a slash at its end; ``dbfs:/`` is the folder ``/dbfs``.

    Raises ConfigError for a URL with a password, which would be stored and shown in plans, and for a malformed one
    (``s3:/bucket``).
    """
    text = str(root)
    if not text:
        raise ConfigError("name a folder, or a URL such as s3://bucket/archive")
    match = None if isinstance(root, Path) else _OPAQUE.fullmatch(text)
    scheme = match[1].lower() if match else ""
    if match and scheme == "dbfs" and match[2]:
        return f"{DBFS}/{match[3]}".rstrip("/")
    if match and scheme == "file" and match[2]:
        return str(Path(urlsplit(text).path).absolute())
    if match and len(match[2]) == 1:
        raise ConfigError(
            f"{text} is not a URL, and as a path it would be a folder on this machine: write {scheme}://..."
        )
    if not match or len(match[2]) < 2:
        return str(Path(text).expanduser().absolute())
    url = urlsplit(text)
    is_container = _ALIASES.get(scheme, scheme) == "abfss" and _AZURE.fullmatch(url.hostname or "") is not None
    if (url.username and not is_container) or url.password or _SECRET.search(unquote(url.query)):
        raise ConfigError(
            f"the credentials in the URL ({url.scheme}://…@{url.hostname}) would be stored and shown in plans: give "
            "them in the storage's own environment variables (AWS_ACCESS_KEY_ID and the like), not in the URL"
        )
    return text.rstrip("/")


def place(root: str) -> str:
    """The canonical name of a root: ``s3a://`` becomes ``s3://``, and symbolic links are resolved."""
    if "://" not in root:
        return os.path.realpath(root)
    url = urlsplit(root)
    scheme = _ALIASES.get(url.scheme.lower(), url.scheme.lower())
    bucket, path = url.netloc, re.sub("/+$", "", url.path)
    if scheme == "abfss" and (azure := _AZURE.fullmatch(url.hostname or "")) is not None:
        container = url.username
        if not container:
            container, _, path = path.removeprefix("/").partition("/")
            path = f"/{path}" if path else ""
        bucket = f"{container}@{azure[1].lower()}.dfs.core.windows.net"
    # Another endpoint has other buckets; region and connection options do not change the place.
    options = [option for option in url.query.split("&") if option.startswith("endpoint_override=")]
    return f"{scheme}://{bucket}{path}{'?' if options else ''}{'&'.join(options)}"


def below(root: str, name: str) -> str:
    """A file or folder below a root, as other tools name it; a URL's options stay at its end."""
    if "://" not in root:
        return f"{root}/{name}"
    path, mark, options = root.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


class HashingStream:
    """A stream for pyarrow that writes to another stream, and computes the SHA-256 of the written bytes."""

    closed = False  # pyarrow reads this; closing this stream does not close the other one

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return int(self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    @property
    def sha256(self) -> str:
        """The hash of all written bytes, as hexadecimal digits."""
        return self._hash.hexdigest()


class Storage:
    """The files below one root. Paths are relative to it, with slashes; errors of the storage are OSErrors."""

    def __init__(self, root: str) -> None:
        try:
            from pyarrow import fs  # noqa: PLC0415 -- an extra, and not needed to name an archive
        except ModuleNotFoundError as error:
            raise needs_extra("files of an archive or a checkpoint need pyarrow", "arrow", error) from error
        self.root, self._fs = root, fs
        self.is_local = "://" not in root
        if Path(DBFS) in Path(root).parents and not Path(DBFS).is_dir():
            raise ConfigError(f"{root}: dbfs:/ is read through the folder {DBFS}, which does not exist on this machine")
        scheme, mark, rest = root.partition("://")
        # Other names are unknown to pyarrow.
        uri = f"{_ALIASES.get(scheme.lower(), scheme)}{mark}{rest}" if mark else root
        # With the blob host, pyarrow would take the container for a user.
        if uri.startswith("abfss://") and "@" in rest:
            uri = uri.replace(".blob.core.windows.net", ".dfs.core.windows.net", 1)
        try:
            location: tuple[Any, str] = (fs.LocalFileSystem(), root) if self.is_local else fs.FileSystem.from_uri(uri)
        except Exception as error:
            raise ConfigError(f"pyarrow.fs cannot open {root}: {error}") from error
        self.fs, self._base = location

    def path(self, file: str) -> str:
        """The file's path in ``fs``."""
        return f"{self._base.rstrip('/')}/{file}"

    def size(self, file: str) -> int | None:
        """The file's size in bytes; None if it does not exist."""
        info = self.fs.get_file_info(self.path(file))
        return int(info.size) if info.type == self._fs.FileType.File else None

    def has_folder(self, folder: str) -> bool:
        """Whether the folder exists; in a bucket, whether there are files below it."""
        return bool(self.fs.get_file_info(self.path(folder)).type == self._fs.FileType.Directory)

    def names(self, folder: str) -> list[str]:
        """The names of the files in this folder, not in folders below it; none if it does not exist."""
        selector = self._fs.FileSelector(self.path(folder), allow_not_found=True)
        return [info.base_name for info in self.fs.get_file_info(selector) if info.type == self._fs.FileType.File]

    def read(self, file: str) -> bytes:
        """The file's content."""
        with self.fs.open_input_stream(self.path(file)) as stream:
            return bytes(stream.read())

    def create(self, file: str) -> Any:
        """Open a stream to a new file, and create its folders."""
        # A bucket needs no folders: pyarrow would write empty objects, even above the root.
        if self.fs.type_name != "s3":
            self.fs.create_dir(self.path(file).rpartition("/")[0], recursive=True)
        return self.fs.open_output_stream(self.path(file))

    def keep(self, file: str) -> None:
        """Flush a file, and its name in the folders above it, to disk; does nothing in a bucket."""
        if not self.is_local:
            return
        path, root = Path(self.path(file)), Path(self.root)
        for entry in (path, *path.relative_to(root).parents):  # also its folders, because they hold the names
            _sync(path if entry is path else root / entry)
        device = root.stat().st_dev
        for folder in root.parents:  # the root and folders above it may be new
            if folder.stat().st_dev != device or not os.access(folder, os.R_OK):
                return
            _sync(folder)

    def remove(self, file: str) -> None:
        """Delete the file, if it exists."""
        try:
            self.fs.delete_file(self.path(file))
        except FileNotFoundError:
            return

    def files(self) -> Iterator[tuple[str, datetime | None]]:
        """Every file below the root, with the time of its last write."""
        selector = self._fs.FileSelector(self._base, recursive=True, allow_not_found=True)
        for info in self.fs.get_file_info(selector):
            if info.type == self._fs.FileType.File:
                yield info.path.removeprefix(f"{self._base.rstrip('/')}/"), info.mtime


@contextmanager
def complete_file(file: Path, *, mode: int = 0o666) -> Iterator[IO[str]]:
    """Yield an ASCII file to write, which is NAME.part until it is complete and synced.

    ``mode`` gives the file's permissions, before the umask is applied. Raises ConfigError if it cannot be written.
    """
    part = file.with_name(f"{file.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="ascii") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
        _sync(file.absolute().parent)  # so that the file's name also survives a crash of the machine
    except OSError as failed:
        raise ConfigError(f"{file} cannot be written: {failed.strerror}") from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
