"""``seekpoint export``: the records that a group has applied, as files that no retention cuts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from seekpoint.cli import spark_session
from seekpoint.cli.errors import terminable
from seekpoint.cli.options import Actor, AsJson, MaxRecords, ServerOptions, SparkOptions, command
from seekpoint.cli.output import answer, numbered
from seekpoint.cli.progress_bar import Shown
from seekpoint.errors import ConfigError
from seekpoint.jobs.export import Archive, Export, Exported
from seekpoint.jobs.export.export import RANGE
from seekpoint.worker.import_by_name import load_pipeline


@command
def export(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="A Pipeline or a Worker, whose group is meant.")
    ] = None,
    *,
    to: Annotated[
        str, typer.Option(metavar="URL", help="The archive: a folder, or a URL such as s3://bucket/archive.")
    ],
    group: Annotated[str | None, typer.Option(help="The group, where no pipeline is named.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only of this topic; repeat it.")] = None,
    format: Annotated[  # noqa: A002
        Literal["parquet", "delta"], typer.Option(help="Files alone, or a Delta table for each topic.")
    ] = "parquet",
    range_records: Annotated[int, typer.Option(help="Offsets of one file, at most.", min=1)] = RANGE,
    max_records: MaxRecords = None,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue where retention was faster: the archive has a gap then.")
    ] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Then remove what killed exports left, if it is older than a day.")
    ] = False,
    tasks: SparkOptions,
    on: ServerOptions,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Write the records that a group has applied, and that the archive does not have yet, to the archive.

    Raw, as the log has them, up to the stored offsets. Run it as often as you like, also twice at once; whatever ends
    it, the next one continues after what was committed.
    """
    if (target is None) == (group is None):
        raise ConfigError("name a pipeline, MODULE:NAME, or its group with --group; one of them")
    with (
        on.job(context, *([] if target is None else [target])) as of,
        terminable(),
        Shown(as_json=as_json) as progress,
        ExitStack() as stack,
    ):
        name = group or load_pipeline(of.names[0], from_here=True).group
        archive = Archive(to, of.engine, schema=of.schema)
        more: dict[str, Any] = {"range_records": range_records, "max_records": max_records, "actor": actor}
        more["skip_lost"] = skip_lost
        more |= spark_session.writer(stack, of, tasks, progress.say)
        servers = of.engine, of.kafka
        done = Export(*servers, archive, name, topic, schema=of.schema, format=format, progress=progress, **more).run()
        swept = list(archive.sweep()) if sweep else []
    _print(done, archive, name, swept, as_json=as_json)


def _print(done: Exported, archive: Archive, group: str, swept: list[str], *, as_json: bool) -> None:
    offsets = {str(at): offset for at, offset in done.offsets.items()}
    added = f"{done.records:,} records in {numbered(done.files, 'file')}, {done.bytes:,} bytes"
    answer(
        {**asdict(done), "archive": archive.root, "group": group, "offsets": offsets, "swept": swept},
        f"{group}: {added}, added to {archive.root}",
        *(f"{at} is there up to offset {offset}" for at, offset in offsets.items()),
        *([f"{len(swept)} files that no export had committed are removed"] if swept else []),
        as_json=as_json,
    )
