"""``seekpoint exporter``: metrics of a ledger for Prometheus."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from seekpoint.cli.options import DatabaseOptions, KafkaOptions, command, host_and_port, one_off_engine, require_brokers
from seekpoint.cli.output import answer
from seekpoint.errors import ConfigError
from seekpoint.metrics import CATALOGUE, LedgerGauges, Samples
from seekpoint.worker.signal_handlers import handled


@command
def exporter(
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address that Prometheus scrapes.")
    ] = "127.0.0.1:9807",
    per_partition: Annotated[bool, typer.Option(help="A series for each partition, or one per group.")] = True,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
    ledger: DatabaseOptions,
    brokers: KafkaOptions,
) -> None:
    """Serve metrics of all groups of a ledger to Prometheus, at http://HOST:PORT/metrics, until SIGTERM or Ctrl-C.

    Reads the ledger's views at each scrape, so it also reports crashed workers. Needs no right on keys, values and
    errors, and writes nothing. Lag comes from the workers' samples, and has no series if the last one is older than
    three minutes; with --kafka or --kafka-config, the brokers are asked. If the database does not answer,
    seekpoint_ledger_up is 0.
    """
    settings = brokers.settings()
    if settings:
        require_brokers(settings)
    if as_json and not once:
        raise ConfigError("--json works only with --once: add --once, or remove --json")
    gauges = LedgerGauges(one_off_engine(ledger.database_url), schema=ledger.schema, kafka=settings)
    if once:
        _print(gauges, per_partition=per_partition, as_json=as_json)
        return
    from seekpoint.metrics.prometheus import serving  # noqa: PLC0415 -- an extra

    host, port = host_and_port(listen)
    stopping = threading.Event()
    try:
        with handled(lambda *_: stopping.set()), serving(host, port, gauges, per_partition=per_partition) as port:
            typer.echo(f"http://{listen.rpartition(':')[0]}:{port}/metrics", err=True)
            stopping.wait()
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error.strerror or error}; choose another address or port") from None


def _print(gauges: LedgerGauges, *, per_partition: bool, as_json: bool) -> None:
    """Print the metrics. Raises the error if the ledger cannot be read."""
    if as_json:
        samples = Samples(per_partition=per_partition)
        gauges.add_to(samples)
        metrics = [
            {"name": metric.name, "labels": dict(zip(metric.labels, labels, strict=True)), "value": value}
            for metric in CATALOGUE
            for labels, value in samples.of(metric).items()
        ]
        answer(metrics, as_json=True)
    else:
        from seekpoint.metrics.prometheus import exposition  # noqa: PLC0415 -- an extra

        typer.echo(exposition(gauges, per_partition=per_partition).decode(), nl=False)
    if gauges.error is not None:
        raise gauges.error
