"""The processes that peers run in: ended, and their folder removed, when the block or this process ends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers import venvs
from peers.trial import PeerError
from seekpoint.testing.servers.process import Child, Folder

JOBS = Path(__file__).parent / "jobs"
LONGEST = 1800.0  # seconds that a job may take


@contextmanager
def started(name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A process in a temporary folder; its output is the child's log."""
    child = Child(command, Folder(f"peer-{name}"), env={**venvs.clean_environment(), **(env or {})})
    try:
        child.start()
        yield child
        child.stop()
    finally:
        child.close()


def job(environment: str, script: str, settings: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Command and variables of a script that runs in another environment; it reads ``settings`` from JOB."""
    python = venvs.interpreter(environment)
    return [str(python), str(JOBS / script)], {"JOB": json.dumps(settings)}


def answer(environment: str, script: str, settings: Mapping[str, Any], **env: str) -> dict[str, Any]:
    """Run a :func:`job` to its end; returns the JSON of its last line."""
    command, variables = job(environment, script, settings)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
        env={**venvs.clean_environment(), **variables, **env},
    )
    if done.returncode:
        raise PeerError(f"{script} ended with {done.returncode}\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def printed(child: Child, word: str) -> float:
    """The number after ``word`` at the start of a line of the child's output."""
    for line in child.log_tail(1_000_000).splitlines():
        if line.startswith(f"{word} "):
            return float(line.split()[1])
    raise PeerError(f"no line of its output begins with {word}\n{child.log_tail()}")
