"""Quix Streams' PostgreSQL sink. Both tables."""

from __future__ import annotations

from functools import partial

from peers import kinds, venvs
from peers.processes import job, started
from peers.trial import Measured, SkippedError, Trial, play
from peers.watch import watch


def run(trial: Trial, *, key: bool) -> Measured:
    """One application of one process; a checkpoint, and with it a write, every ``batch`` records."""
    kinds.fresh(trial.kind, trial.dsn, key=key)
    settings = {
        "brokers": trial.brokers,
        "topic": trial.kind.name,
        "group": trial.group("quix"),
        "batch": trial.batch,
        "database": trial.database,
        "upsert": key,
    }
    command, env = job("quix", "quix_job.py", settings)
    with started("quix", command, env) as child:
        seen = watch(trial, child)
    try:
        kinds.verify(trial.kind, trial.dsn, trial.records)
    except AssertionError as difference:
        # quixstreams 3.28: `columns = list(rows[0].keys())`, and None is left out of a row.
        raise SkippedError(
            "its sink takes the columns of a batch from the batch's first record, without those that are null there, "
            f"and so loses values of the others: {difference}"
        ) from difference
    return Measured(
        venvs.version("quix", "quixstreams"),
        seen.seconds,
        seen.records,
        "at least once, idempotent by key" if key else "at least once",
        seen.cpu_seconds,
        {
            "commit_every": trial.batch,
            "schema_auto_update": False,
            "fetch.queue.backoff.ms": 10,
            "recommended_by": "Quix Streams, Connectors/Sinks/PostgreSQL Sink (upsert_on_primary_key); Configuration",
        },
    )


MODES = {"insert": partial(run, key=False), "upsert": partial(run, key=True)}

if __name__ == "__main__":
    play("quix", MODES)
