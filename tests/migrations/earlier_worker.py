"""A worker of an earlier version of the package, which ``PYTHONPATH`` names: the given arguments are JSON."""

from __future__ import annotations

import json
import sys

from seekpoint import Append, Pipeline, Worker, codecs


def main() -> None:
    given = json.loads(sys.argv[1])
    sink = Append(
        ("public", "book"),
        columns=["topic", "partition", "offset", "value"],
        row=lambda r: (r.topic, r.partition, r.offset, r.value),
    )
    pipeline = Pipeline(
        given["group"], topics=given["topic"], value=codecs.Text(), sinks=[sink], on_poison="dead_letter"
    )
    Worker(pipeline, engine=given["dsn"], kafka=given["kafka"]).run()


if __name__ == "__main__":
    main()
