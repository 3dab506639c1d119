"""``seekpoint dev``: a Postgres and a Kafka broker to play with, gone with Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import threading

import typer

from seekpoint.cli.explain import explained


def dev() -> None:
    """Start a throwaway Postgres and a throwaway Kafka, print their URLs, and remove both on Ctrl-C."""
    with explained():
        # The extra `dev` may be missing: then only this command is.
        from seekpoint.dev.child import Folder  # noqa: PLC0415
        from seekpoint.dev.servers import start_pair  # noqa: PLC0415

        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        with start_pair(own=True) as pair:
            folder = Folder("dev")
            try:
                signal.signal(signal.SIGINT, lambda *_: stopped.set())
                config = folder.path / "kafka.properties"
                config.write_text(f"bootstrap.servers={pair.kafka.bootstrap}\n", encoding="utf-8")
                typer.echo(
                    f"{pair.describe()}\n\n"
                    f"  Postgres  {pair.postgres.url}\n"
                    f"  Kafka     {pair.kafka.bootstrap}\n\n"
                    f"export SEEKPOINT_DATABASE_URL={shlex.quote(pair.postgres.url)}\n"
                    f"export SEEKPOINT_KAFKA_CONFIG={shlex.quote(str(config))}\n\n"
                    "Ctrl-C removes both, with all their data."
                )
                while not stopped.wait(1.0):
                    for server in (pair.postgres, pair.kafka):
                        if not server.running:
                            raise server.failure(f"{server.describe()} has ended by itself")
            finally:
                folder.close()
