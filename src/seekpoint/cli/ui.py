"""``seekpoint ui``: serves the console."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from seekpoint.admin import Admin
from seekpoint.cli.exit_codes import USAGE
from seekpoint.cli.options import DatabaseOptions, KafkaOptions, command, host_and_port, require_brokers
from seekpoint.worker.signal_handlers import handled


@command
def ui(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address for browsers.")] = "127.0.0.1:8484",
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let users of this machine act; only on loopback, without --host.")
    ] = False,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Show keys, values, headers and error texts of dead letters.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name that browsers may use in addition to localhost (repeatable)."),
    ] = None,
    refresh: Annotated[float, typer.Option(metavar="SECONDS", help="How often pages refresh.", min=0.5)] = 2.0,
    ledger: DatabaseOptions,
    brokers: KafkaOptions,
) -> None:
    """Serve the console of a ledger at http://HOST:PORT until SIGTERM or Ctrl-C.

    Pages show groups, partitions, dead letters, reloads, history and health, and refresh every two seconds. The console
    is for users of this machine, and read-only. With --allow-actions these users may pause, resume, reset, accept
    losses, replay and discard, after a plan and with a reason. For other users, mount seekpoint.web.create_app with
    access= in a service. Needs the extra web.
    """
    from seekpoint.web.access import PROXIED  # noqa: PLC0415 -- an extra
    from seekpoint.web.guard import is_loopback  # noqa: PLC0415 -- an extra
    from seekpoint.web.serving import serving  # noqa: PLC0415 -- an extra

    address, port = host_and_port(listen)
    if allow_actions and not is_loopback(address):
        typer.echo(
            f"error: --allow-actions on {address}: anyone who reaches it could act; listen on loopback, or mount "
            "seekpoint.web.create_app with access= in a service",
            err=True,
        )
        raise typer.Exit(USAGE)
    if allow_actions and host:
        typer.echo(f"error: --allow-actions with --host: {PROXIED}", err=True)
        raise typer.Exit(USAGE)
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    stopping = threading.Event()
    admin = Admin(ledger.engine(), settings, schema=ledger.schema)
    options = {"allow_actions": allow_actions, "payloads": "full" if payloads else "none"}
    with (
        handled(lambda *_: stopping.set()),
        serving(admin, address, port, hosts=host or (), refresh=refresh, **options) as served,
    ):
        typer.echo(served, err=True)
        stopping.wait()
