"""The loops that tutorials teach, with kafka-python: poll, commit. They write nothing, except ``-write``.

``sync`` and ``async`` name the commit after each poll; ``-crc32c`` has the wheel that the client's documentation
recommends for speed; ``2-`` is the older client, which most tutorials were written for. Both tables.
"""

from __future__ import annotations

from functools import partial

from peers import kinds, venvs
from peers.processes import answer
from peers.trial import Measured, Trial, play

POLL = 500  # max_poll_records, the client's own default


def run(trial: Trial, *, commit: str, old: bool, crc32c: bool, write: bool = False) -> Measured:
    """Consume the whole topic in polls of 500, each followed by a commit; ``write`` adds executemany before it."""
    environment = f"kafka-python{'-2' if old else ''}{'-crc32c' if crc32c else ''}"
    if write:
        kinds.fresh(trial.kind, trial.dsn)
    settings = {
        "brokers": trial.brokers,
        "topic": trial.kind.name,
        "group": trial.group("kafka-python"),
        "records": trial.records,
        "commit": commit,
        "poll": POLL,
        "dsn": trial.dsn if write else None,
        "columns": list(trial.kind.columns),
    }
    report = answer(environment, "kafka_python_job.py", settings)
    ends = {str(partition): end for partition, end in kinds.ends(trial.kind, trial.brokers).items()}
    assert report["positions"] == ends, f"the loop stopped at {report['positions']}, not at {ends}"
    if write:
        kinds.verify(trial.kind, trial.dsn, trial.records)
    return Measured(
        venvs.version(environment, "kafka-python"),
        report["seconds"],
        report["records"],
        "at least once" if write else "none: nothing is written",
        report["cpu_seconds"],
        {
            "commit": f"{commit}, after each poll",
            "max_poll_records": POLL,
            "crc32c": crc32c,
            "polls": report["polls"],
            "writes": "executemany, committed before Kafka" if write else "nothing",
            "recommended_by": "kafka-python, README: 'Optional crc32c install', commit() after processing",
        },
    )


MODES = {
    f"{'2-' if old else ''}{commit}{'-crc32c' if crc32c else ''}": partial(run, commit=commit, old=old, crc32c=crc32c)
    for old in (False, True)
    for crc32c in (False, True)
    for commit in ("sync", "async")
} | {"sync-write": partial(run, commit="sync", old=False, crc32c=True, write=True)}

if __name__ == "__main__":
    play("kafka_python", MODES)
