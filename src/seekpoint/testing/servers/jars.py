"""Apache Kafka's published jars: found by name in ``kafka-jars.lock``, fetched once, checked by SHA-256.

``python -m seekpoint.testing.servers.jars`` resolves the release again and prints the lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from seekpoint.errors import install
from seekpoint.testing.servers.process import ServerFailed

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION = "4.3.1"
BROKER = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
#: Lets the broker write a log; its release is that of the log4j-core on which the broker depends.
LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
CACHE_VARIABLE = "SEEKPOINT_CACHE"
_OF_THE_FOLDER = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def to_stderr(line: str) -> None:
    """Show one line of progress; on a terminal the next one takes its place."""
    end = "\r" if sys.stderr.isatty() else "\n"
    sys.stderr.write(f"{line}{end}")
    sys.stderr.flush()


def classpath(progress: Callable[[str], None] = to_stderr) -> list[Path]:
    """The jars of the broker on this machine; missing ones are fetched.

    Any number of processes may ask at once: one fetches, the others wait. A file with another digest than the lock's is
    never used. Raises ``ServerFailed``.
    """
    lock = resources.files("seekpoint.testing.servers").joinpath("kafka-jars.lock").read_text(encoding="ascii")
    files = _files(lock)
    cache = cache_folder()
    jars = [_place(cache, coordinate) for coordinate, _ in files]
    # The mark is written after the check of the last jar: if it exists, nothing is checked again.
    stamp = cache / f"kafka-{KAFKA_VERSION}.{hashlib.sha256(lock.encode()).hexdigest()[:16]}.complete"
    if not (stamp.exists() and all(jar.exists() for jar in jars)):
        with _only_one(cache):
            if not (stamp.exists() and all(jar.exists() for jar in jars)):
                _fetch(cache, files, progress)
                stamp.touch()
    return jars


def locked_jars(lock: Path) -> list[Path]:
    """The jars of another lock; fetches missing ones, and checks each digest at every call.

    Each line of the lock is ``SHA-256 GROUP:ARTIFACT:VERSION``. Raises ``ServerFailed``.
    """
    files = _files(lock.read_text(encoding="ascii"))
    cache = cache_folder()
    context = _context(cache)
    with _only_one(cache), ThreadPoolExecutor(max_workers=8) as pool:
        try:
            under_way = [pool.submit(_checked, context, cache, *jar, lock.name) for jar in files]
            return [future.result() for future in under_way]
        except (OSError, RuntimeError) as error:
            raise ServerFailed(f"the jars of {lock.name} could not be fetched: {error}") from error


def _files(lock: str) -> list[tuple[str, str]]:
    """The coordinate and the digest of each jar in a lock."""
    return [(coordinate, digest) for digest, coordinate in (line.split() for line in lock.splitlines())]


def cache_folder() -> Path:
    """``SEEKPOINT_CACHE``, otherwise ``seekpoint`` in the user's cache folder; created if missing."""
    named = os.environ.get(CACHE_VARIABLE)
    user = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(named) if named else (Path(user) if user else Path.home() / ".cache") / "seekpoint"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise ServerFailed(
            f"no folder for Kafka's jars: {error}\nRemedy: set {CACHE_VARIABLE} to a writable folder"
        ) from error
    return folder.absolute()


@contextmanager
def _only_one(cache: Path) -> Iterator[None]:
    try:
        lock = (cache / "lock").open("w")
    except OSError as error:
        raise ServerFailed(_not_kept(cache, error)) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by closing, and at the end of the process
        yield


def _not_kept(cache: Path, error: OSError) -> str:
    return (
        f"Kafka's jars cannot be kept in {cache}: {error}\n"
        f"Remedy: set {CACHE_VARIABLE} to a writable folder with 100 MB of free space"
    )


def _context(cache: Path) -> MavenContext:
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415 -- of an extra
    except ModuleNotFoundError as error:
        raise ServerFailed(f"Kafka's jars are fetched with jgo: {install('dev')} ({error})") from error
    return MavenContext(repo_cache=cache / "maven", timeout=60)


def _place(cache: Path, coordinate: str) -> Path:
    """Where jgo puts ``group:artifact:version``: the layout of Maven's own repository."""
    group, artifact, version = coordinate.split(":")
    return cache.joinpath("maven", *group.split("."), artifact, version, f"{artifact}-{version}.jar")


def _fetch(cache: Path, files: list[tuple[str, str]], progress: Callable[[str], None]) -> None:
    context = _context(cache)
    title = f"Fetching Apache Kafka {KAFKA_VERSION} into {cache}, 45 MB, once"
    progress(title)

    with ThreadPoolExecutor(max_workers=8) as pool:
        under_way = [pool.submit(_checked, context, cache, *jar, "kafka-jars.lock") for jar in files]
        try:
            for done, future in enumerate(as_completed(under_way), start=1):
                future.result()
                if done % 10 == 0 or done == len(files):
                    progress(f"{title}: {done} of {len(files)} jars")
        except (OSError, RuntimeError) as error:
            pool.shutdown(cancel_futures=True)
            if isinstance(error, OSError) and error.errno in _OF_THE_FOLDER:
                raise ServerFailed(_not_kept(cache, error)) from error
            raise ServerFailed(
                f"Apache Kafka {KAFKA_VERSION} could not be fetched: {error}\n"
                "Remedy: check the network (a proxy goes into HTTPS_PROXY, a private certificate authority into "
                "REQUESTS_CA_BUNDLE) and try again: jars already fetched are kept. Or start Docker; tests (not "
                "`seekpoint dev` and `demo`) also take SEEKPOINT_TEST_BROKERS, a broker that you run yourself"
            ) from error


def _checked(context: MavenContext, cache: Path, coordinate: str, digest: str, lock: str) -> Path:
    """The jar, fetched unless it exists; raises ServerFailed if its digest is not the locked one."""
    jar = _place(cache, coordinate)
    if not jar.exists() or _digest(jar) != digest:
        jar.unlink(missing_ok=True)  # incomplete: an earlier process ended while it fetched the file
        context.create_dependency(coordinate).artifact.resolve()
        if _digest(jar) != digest:
            jar.unlink()
            raise ServerFailed(
                f"the fetched {coordinate} has another SHA-256 than in {lock}, and was deleted: try again, or check "
                "what the network's proxy or mirror delivers"
            )
    return jar


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _resolve() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        context = _context(Path(folder))
        # Resolved separately: log4j's parent would replace the broker's kafka-clients by an old release.
        broker, transitive = context.resolver.resolve([context.create_dependency(BROKER)])
        logging = context.create_dependency(LOGGING)
        for dependency in sorted([*broker, *transitive, logging], key=str):
            jar = dependency.artifact.resolve()
            yield f"{_digest(jar)} {dependency.groupId}:{dependency.artifactId}:{dependency.version}\n"


if __name__ == "__main__":
    sys.stdout.writelines(_resolve())
