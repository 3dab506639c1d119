"""Class paths of the peers that run in Java: found by name in ``locks/NAME.jars``, fetched once, checked by SHA-256.

They are fetched like the broker's jars, into the same cache folder (:mod:`seekpoint.testing.servers.jars`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from peers.locks import LOCKS
from peers.trial import SkippedError
from seekpoint.testing.servers.jars import locked_jars
from seekpoint.testing.servers.process import ServerFailed


def classpath(name: str) -> list[Path]:
    """The jars of ``locks/NAME.jars``; missing ones are fetched. SkippedError if that fails."""
    try:
        return locked_jars(LOCKS / f"{name}.jars")
    except ServerFailed as error:
        raise SkippedError(f"the jars of {name} cannot be fetched: {_short(error)}") from error


def version(name: str, artifact: str) -> str:
    """The artifact's version in ``locks/NAME.jars``."""
    for line in (LOCKS / f"{name}.jars").read_text(encoding="ascii").splitlines():
        _, name_in_line, number = line.split()[1].split(":")
        if name_in_line == artifact:
            return number
    raise LookupError(f"{name}.jars has no {artifact}")


def joined(jars: list[Path]) -> str:
    """The argument of ``-cp``."""
    return os.pathsep.join(map(str, jars))


def compiled(java: Path, source: Path, jars: list[Path], into: Path) -> Path:
    """The folder with ``source``, compiled by a compiler in a jar, so that a Java runtime is enough."""
    command = [str(java), "-jar", str(classpath("compiler")[0]), "-17", "-nowarn", "-proc:none"]
    command += ["-cp", joined(jars), "-d", str(into), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stdout}{done.stderr}")
    return into


def _short(error: BaseException) -> str:
    """The error without the addresses of registries, which do not belong in a report."""
    return str(error).split(" in remote repositories")[0].splitlines()[0]
