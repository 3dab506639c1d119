"""Where an archive's files are: a folder, or a bucket that ``pyarrow.fs`` reaches by a URL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seekpoint.errors import ConfigError, needs_extra

_SECRET = re.compile(r"(?i)(?:password|secret|token|key)[^=&]*=")  # abfss://…?client_secret=…


_OPAQUE = re.compile(r"(?i)([a-z][a-z0-9+.-]+):(/*)(.*)", re.DOTALL)  # two characters at least: C:/ is a drive
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("abfs", "wasb", "wasbs"), "abfss"
)  # Spark's and Hadoop's names of the same storage
_AZURE = re.compile(r"(?i)([^@/]+)\.(?:dfs|blob)\.core\.windows\.net")
DBFS = "/dbfs"  # where Databricks shows dbfs:/ as a folder


def named(root: str | Path) -> str:
    """The root as an absolute path, or a URL without a slash at its end; ``dbfs:/`` is the folder ``/dbfs``.

    Raises ConfigError for a URL with a password, which would be in the manifest and in plans of jobs, and for one
    that is none (``s3:/bucket``).
    """
    text = str(root)
    if not text:
        raise ConfigError("an archive needs a folder, or a URL such as s3://bucket/archive")
    found = None if isinstance(root, Path) else _OPAQUE.fullmatch(text)
    scheme = found[1].lower() if found else ""
    if found and scheme == "dbfs" and found[2]:
        return f"{DBFS}/{found[3]}".rstrip("/")
    if found and scheme == "file" and found[2]:
        return str(Path(urlsplit(text).path).absolute())
    if found and len(found[2]) == 1:
        raise ConfigError(f"{text} is no URL, and as a folder it would be one of this machine: write {scheme}://...")
    if not found or len(found[2]) < 2:
        return str(Path(text).expanduser().absolute())
    url = urlsplit(text)
    is_container = _ALIASES.get(scheme, scheme) == "abfss" and _AZURE.fullmatch(url.hostname or "") is not None
    if (url.username and not is_container) or url.password or _SECRET.search(url.query):
        raise ConfigError(
            f"the credentials in the archive's URL ({url.scheme}://…@{url.hostname}) would be in the manifest: give "
            "them as the storage's own environment variables (AWS_ACCESS_KEY_ID and the like), and the URL without"
        )
    return text.rstrip("/")


def place(root: str) -> str:
    """One name for one place, whatever :func:`named` was given: ``s3a://`` is ``s3://``, a link is where it leads."""
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
    # Another endpoint has other buckets; a region, and how to get there, say nothing of the place.
    options = [one for one in url.query.split("&") if one.startswith("endpoint_override=")]
    return f"{scheme}://{bucket}{path}{'?' if options else ''}{'&'.join(options)}"


def below(root: str, name: str) -> str:
    """A file or a folder below a root, as other tools name it; a URL's options stay at its end."""
    if "://" not in root:
        return f"{root}/{name}"
    path, mark, options = root.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


class HashingStream:
    """A stream for pyarrow to write to, which keeps the SHA-256 of what went through it to another."""

    closed = False  # it does not close the other one

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return int(self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    @property
    def sha256(self) -> str:
        """Of all that was written, as hexadecimal digits."""
        return self._hash.hexdigest()


class Storage:
    """The files below one root. Paths are relative to it, with slashes; errors of the storage are OSErrors."""

    def __init__(self, root: str) -> None:
        try:
            from pyarrow import fs  # noqa: PLC0415 -- an extra, and not needed to name an archive
        except ModuleNotFoundError as error:
            raise needs_extra("an archive needs pyarrow", "arrow", error) from error
        self.root, self._fs = root, fs
        self.is_local = "://" not in root
        if Path(DBFS) in Path(root).parents and not Path(DBFS).is_dir():
            raise ConfigError(f"{root}: dbfs:/ is read through the folder {DBFS}, which this machine has not")
        scheme, mark, rest = root.partition("://")
        known = f"{_ALIASES.get(scheme.lower(), scheme)}{mark}{rest}" if mark else root  # pyarrow has one name for each
        if known.startswith("abfss://") and "@" in rest:  # with the other host, pyarrow takes the container for a user
            known = known.replace(".blob.core.windows.net", ".dfs.core.windows.net", 1)
        try:
            found: tuple[Any, str] = (fs.LocalFileSystem(), root) if self.is_local else fs.FileSystem.from_uri(known)
        except Exception as error:
            raise ConfigError(f"{root} is no place that pyarrow.fs knows: {error}") from error
        self.fs, self._base = found

    def path(self, file: str) -> str:
        """As ``fs`` names it."""
        return f"{self._base.rstrip('/')}/{file}"

    def size(self, file: str) -> int | None:
        """Its bytes; None where there is none."""
        found = self.fs.get_file_info(self.path(file))
        return int(found.size) if found.type == self._fs.FileType.File else None

    def has_folder(self, folder: str) -> bool:
        """Whether there are files below this folder."""
        return bool(self.fs.get_file_info(self.path(folder)).type == self._fs.FileType.Directory)

    def create(self, file: str) -> Any:
        """A stream for a new file, whose folders are made."""
        self.fs.create_dir(self.path(file).rpartition("/")[0], recursive=True)
        return self.fs.open_output_stream(self.path(file))

    def keep(self, file: str) -> None:
        """Have the disk keep what was written, before anybody says that it is there. A bucket keeps what it took."""
        if not self.is_local:
            return
        path, root = Path(self.path(file)), Path(self.root)
        for each in (path, *path.relative_to(root).parents):  # the names in its folders, too
            _sync(path if each is path else root / each)
        device = root.stat().st_dev
        for each in root.parents:  # the root may be new, and folders above it
            if each.stat().st_dev != device or not os.access(each, os.R_OK):
                return
            _sync(each)

    def remove(self, file: str) -> None:
        """Delete it; it may be gone already."""
        try:
            self.fs.delete_file(self.path(file))
        except FileNotFoundError:
            return

    def files(self) -> Iterator[tuple[str, datetime | None]]:
        """Every file below the root, and when it was last written to."""
        selector = self._fs.FileSelector(self._base, recursive=True, allow_not_found=True)
        for found in self.fs.get_file_info(selector):
            if found.type == self._fs.FileType.File:
                yield found.path.removeprefix(f"{self._base.rstrip('/')}/"), found.mtime


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
