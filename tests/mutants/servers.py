"""A Postgres and a broker in a process of their own; the caller imports nothing of the package that it breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """The environment that tests find them by; they end with the block."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the servers did not start")
        yield json.loads(line)
        process.stdin.close()


def _serve() -> None:
    from seekpoint.testing.servers.pair import start_pair

    with start_pair() as pair:
        variables = {"SEEKPOINT_TEST_DSN": pair.postgres.dsn, "SEEKPOINT_TEST_BROKERS": pair.kafka.bootstrap}
        print(json.dumps(variables), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve()
