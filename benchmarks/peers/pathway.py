"""Pathway's Kafka reader and Postgres writer. Both tables, with the changes that its writer requires.

Pathway keeps the name ``id`` for itself, so that column is ``event_id``; it has no numeric, so amounts are doubles;
``append`` (its stream of changes) adds its own columns ``time`` and ``diff``.
"""

from __future__ import annotations

from functools import partial

from peers import kinds, venvs
from peers.processes import job, printed, started
from peers.trial import Measured, Trial, play
from peers.watch import watch

AUTOCOMMIT = 500  # milliseconds of a minibatch
RENAMED = {"id": "event_id"}


def run(trial: Trial, *, snapshot: bool) -> Measured:
    """Run one process of ``parallelism`` threads.

    The clock starts at ``pw.run()``, because the first minibatch may have much of the topic.
    """
    doubles = tuple(
        f"ALTER COLUMN {column} TYPE double precision"
        for column, type_ in trial.kind.columns.items()
        if type_ == "numeric"
    )
    own = () if snapshot else ("ADD COLUMN time bigint, ADD COLUMN diff smallint",)
    kinds.fresh(trial.kind, trial.dsn, key=snapshot, alter=("RENAME COLUMN id TO event_id", *doubles, *own))
    settings = {
        "brokers": trial.brokers,
        "topic": trial.kind.name,
        "group": trial.group("pathway"),
        "batch": trial.batch,
        "database": trial.database,
        "snapshot": snapshot,
        "autocommit": AUTOCOMMIT,
        "columns": {RENAMED.get(column, column): type_ for column, type_ in trial.kind.columns.items()},
        "times": trial.kind.times,
    }
    command, env = job("pathway", "pathway_job.py", settings)
    with started("pathway", command, {**env, "PATHWAY_THREADS": str(trial.parallelism)}) as child:
        seen = watch(trial, child, all_of_it=True)
        seconds = seen.last - printed(child, "RUN")
    kinds.verify(trial.kind, trial.dsn, trial.records, RENAMED)
    return Measured(
        venvs.version("pathway", "pathway"),
        seconds,
        trial.records,
        "not tied to Kafka's offsets without its persistence",
        None,
        {
            "max_batch_size": trial.batch,
            "autocommit_duration_ms": AUTOCOMMIT,
            "output_table_type": "snapshot" if snapshot else "stream_of_changes",
            "threads": trial.parallelism,
            "fetch.queue.backoff.ms": 10,
            "clock": "from pw.run() to the last visible row",
            "recommended_by": "Pathway, API docs: pw.io.kafka.read, pw.io.postgres.write (max_batch_size)",
        },
    )


MODES = {"append": partial(run, snapshot=False), "snapshot": partial(run, snapshot=True)}

if __name__ == "__main__":
    play("pathway", MODES)
