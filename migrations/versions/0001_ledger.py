"""The ledger: groups and their offsets, dead letters, runs of jobs, exported files, and what operators look at.

The statements are in 0001_ledger.sql. Downgrading drops all of it. It is refused while a run is open, and while there
are rows without which records would be lost or applied again, unless their groups are named.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from seekpoint.schema import refuse_losing, refuse_open_runs, run_in_schema, step

revision = "0001"
down_revision = None
branch_labels = ("seekpoint",)
depends_on = None


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        run_in_schema(schema, Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        refuse_open_runs(schema)
        _refuse_losing_rows(schema)
        run_in_schema(schema, "DROP VIEW seekpoint.group_status")
        run_in_schema(schema, "DROP VIEW seekpoint.lag")
        run_in_schema(schema, "DROP VIEW seekpoint.partition_state")
        for table in (
            *("position_sample", "worker", "replay_request", "reprocess_dead_letter"),
            *("export_run", "export_manifest", "reload_staged", "reload_position", "reload_run"),
            *(
                "admin_action",
                "lost_range",
                "dead_letter",
                "group_topic",
                "partition_trouble",
                "partition_offset",
                "consumer_group",
            ),
        ):
            op.drop_table(table, schema=schema)


def _refuse_losing_rows(schema: str) -> None:
    """The groups first: claims and resets lock them before the offsets."""
    refuse_losing(
        schema,
        "consumer_group",
        what="the positions of forgotten groups",
        then="a worker that starts under such a name would apply every record again",
        where="forgotten IS NOT NULL",
        named="name",
    )
    refuse_losing(
        schema,
        "partition_offset",
        what="the stored offsets",
        then="at their next start every record would be applied again",
    )
    refuse_losing(
        schema,
        "dead_letter",
        what="open dead letters",
        then="their records were passed without being applied, and no worker reads them again; replay or discard "
        "them first (seekpoint dead-letters)",
        where="state IN ('dead_lettered', 'blocked', 'waiting')",
    )
    refuse_losing(
        schema, "lost_range", what="the lost ranges", then="nothing else says that these records were not applied"
    )
    refuse_losing(
        schema,
        "export_manifest",
        what="the checksums of exported files",
        then="a file that is damaged afterwards may be read as other records, without an error",
        where="sha256 IS NOT NULL",
    )
