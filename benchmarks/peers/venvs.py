"""A separate environment for each peer that is written in Python, made from ``locks/NAME.txt``; it may be deleted.

It is in the cache folder of the throwaway servers (``SEEKPOINT_CACHE``); a changed lock makes a new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import uv

from peers.locks import LOCKS
from peers.trial import SkippedError
from seekpoint.testing.servers.jars import cache_folder


def interpreter(name: str) -> Path:
    """The Python of the environment ``name``, which is made if it does not exist; SkippedError if that fails."""
    lock = LOCKS / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        python, ready = folder / "venv" / "bin" / "python", folder / "ready"
        if not ready.exists():
            _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder / "venv"), name=name)
            _uv("pip", "sync", "--quiet", "--python", str(python), str(lock), name=name)
            ready.touch()
    return python


def version(name: str, package: str) -> str:
    """The package's version in ``locks/NAME.txt``."""
    for line in (LOCKS / f"{name}.txt").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{package}=="):
            return line.split(" ")[0].removeprefix(f"{package}==")
    raise LookupError(f"{name}.txt has no {package}")


def clean_environment() -> dict[str, str]:
    """The environment without variables that would make another Python import our packages."""
    return {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}}


def _uv(*arguments: str, name: str) -> None:
    done = subprocess.run(
        [uv.find_uv_bin(), *arguments], capture_output=True, text=True, check=False, env=clean_environment()
    )
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if line.strip()), "no reason given")
        raise SkippedError(f"the environment of {name} cannot be made: {why.strip()}")
