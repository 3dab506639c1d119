"""Checks that a merge took effect: triggers, rules and row security may leave a live row unchanged without an error."""

from __future__ import annotations

from sqlalchemy import Connection, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.sql_templates import Composable, composed, names
from seekpoint.jobs.tables.staging_schema import StagingTables
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.sinks.catalog import quoted

# Everything of a table and its partitions that may prevent a change of a row.
_HOOKS = text(
    """
    WITH own (oid) AS (SELECT to_regclass(:name) UNION SELECT relid FROM pg_partition_tree(to_regclass(:name)))
    SELECT 'trigger ' || tgname AS what FROM pg_trigger, own
    WHERE tgrelid = own.oid AND NOT tgisinternal AND tgenabled <> 'D'
    UNION SELECT 'rule ' || rulename FROM pg_rewrite, own WHERE ev_class = own.oid AND ev_enabled <> 'D'
    UNION SELECT 'row security' FROM pg_class WHERE oid = to_regclass(:name) AND row_security_active(oid)
    ORDER BY what
    """
)
# Row security is active for this role, and no policy lets it see every row.
_HIDES = text(
    """
    SELECT row_security_active(c.oid) AND (
        EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polcmd IN ('*', 'r') AND NOT p.polpermissive)
        OR NOT EXISTS (
            SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polcmd IN ('*', 'r') AND p.polpermissive
                   AND pg_get_expr(p.polqual, p.polrelid) = 'true'
                   AND EXISTS (SELECT FROM unnest(p.polroles) r (oid)
                               WHERE r.oid = 0 OR pg_has_role(current_user, r.oid, 'USAGE'))))
    FROM pg_class c WHERE c.oid = to_regclass(:name)
    """
)


def hides_rows(connection: Connection, table: Path) -> bool:
    """Whether row security may hide rows of the table from this role, so that a comparison would miss them."""
    return bool(connection.execute(_HIDES, {"name": quoted(*table)}).scalar())


def hooks(connection: Connection, target: Target) -> list[str]:
    """The triggers, rules and row security that act on a merge's changes of the table."""
    return list(connection.execute(_HOOKS, {"name": quoted(*target.path)}).scalars())


class MergeCheck:
    """Checks that one table's merge took effect, if the table has triggers, rules or row security."""

    def __init__(self, tables: StagingTables) -> None:
        self._tables = tables
        self._hooks = hooks(tables.connection, tables.target)
        if self._hooks:
            tables.run(
                "CREATE {unlogged} TABLE {before} AS SELECT {key}, {live_image} AS image FROM {diff} AS diff "
                "JOIN {live} AS live USING ({key})",
                live_image=self._image("live"),
            )

    def require(self) -> None:
        """Check after the merge that every key has its rebuilt row. Raises ReloadRefused with the counts."""
        if not self._hooks:
            return
        [(added, deleted, changed)] = self._tables.rows(
            "SELECT count(*) FILTER (WHERE live.tableoid IS NULL AND built.tableoid IS NOT NULL), "
            "count(*) FILTER (WHERE live.tableoid IS NOT NULL AND built.tableoid IS NULL), "
            "count(*) FILTER (WHERE {live_image} = before.image AND {built_image} <> before.image "
            "AND live.tableoid IS NOT NULL AND built.tableoid IS NOT NULL) "
            "FROM {diff} AS diff LEFT JOIN {live} AS live USING ({key}) LEFT JOIN {built} AS built USING ({key}) "
            "LEFT JOIN {before} AS before USING ({key})",
            live_image=self._image("live"),
            built_image=self._image("built"),
        )
        if added or deleted or changed:
            why = (
                f"{self._tables.target.name}: {added} rows were not added, {changed} not changed and {deleted} not "
                f"deleted, because {', '.join(self._hooks)} prevented it. Nothing was changed. Make them accept "
                "what this role writes, or disable them for the cut-over, and start another run"
            )
            raise ReloadRefused([why])

    def _image(self, side: str) -> Composable:
        return composed("ROW({columns})::text", columns=names(self._tables.columns, side))
