"""``seekpoint exporter``: metrics of a ledger for Prometheus."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from seekpoint.cli.options import DatabaseOptions, KafkaOptions, command, host_and_port, one_off_engine, require_brokers
from seekpoint.cli.output import answer
from seekpoint.errors import ConfigError
from seekpoint.metrics import CATALOGUE, LedgerGauges, Samples


@command
def exporter(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Prometheus scrapes.")] = "127.0.0.1:9807",
    per_partition: Annotated[bool, typer.Option(help="A series for each partition, or one for all of a group.")] = True,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
    ledger: DatabaseOptions,
    brokers: KafkaOptions,
) -> None:
    """Serve metrics of all groups of a ledger to Prometheus, at http://HOST:PORT/metrics, until SIGTERM or Ctrl-C.

    A dead worker cannot report itself: this reads the ledger's views at each scrape, needs no right on keys, values and
    errors, and writes nothing. Lag is of the workers' samples, and has no series where the last one is older than three
    minutes; with --kafka or --kafka-config, the brokers are asked. Where the database does not answer,
    seekpoint_ledger_up is 0.
    """
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    if as_json and not once:
        raise ConfigError("--json is for --once")
    gauges = LedgerGauges(one_off_engine(ledger.database_url), schema=ledger.schema, kafka=settings)
    if once:
        _print(gauges, per_partition=per_partition, as_json=as_json)
        return
    from seekpoint.metrics.prometheus import serving  # noqa: PLC0415 -- an extra

    host, port = host_and_port(listen)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        with serving(host, port, gauges, per_partition=per_partition) as port:
            typer.echo(f"http://{listen.rpartition(':')[0]}:{port}/metrics", err=True)
            stopping.wait()
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error.strerror or error}; choose another port") from None


def _print(gauges: LedgerGauges, *, per_partition: bool, as_json: bool) -> None:
    """Print the metrics. Raises what kept the ledger from being read."""
    if as_json:
        samples = Samples(per_partition=per_partition)
        gauges.add_to(samples)
        found = [
            {"name": metric.name, "labels": dict(zip(metric.labels, labels, strict=True)), "value": value}
            for metric in CATALOGUE
            for labels, value in samples.of(metric).items()
        ]
        answer(found, as_json=True)
    else:
        from seekpoint.metrics.prometheus import exposition  # noqa: PLC0415 -- an extra

        typer.echo(exposition(gauges, per_partition=per_partition).decode(), nl=False)
    if gauges.error is not None:
        raise gauges.error
