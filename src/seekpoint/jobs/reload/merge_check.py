"""Whether a merge took effect: triggers, rules and row security may keep a live row as it was, without an error."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql as ident
from sqlalchemy import Connection, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.reload.compare import same_key
from seekpoint.jobs.tables.compose import name, rows, run
from seekpoint.jobs.tables.staging_schema import Staging, unlogged
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.sinks.catalog import quoted

# Of the table and its partitions: what may leave a row as it was.
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
# Row security is active for this role, and no policy says that it sees every row.
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
    """Whether row security may hide rows of the table from this role: a comparison would not count them."""
    return bool(connection.execute(_HIDES, {"name": quoted(*table)}).scalar())


class Kept:
    """Looks whether one table's merge took effect, where something on the table may prevent it."""

    def __init__(self, connection: Connection, staging: Staging, target: Target, columns: Sequence[str]) -> None:
        self._connection, self._target = connection, target
        self._hooks = list(connection.execute(_HOOKS, {"name": quoted(*target.path)}).scalars())
        self._parts = {
            "unlogged": unlogged(staging.schema),
            "before": name(staging.schema, f"before_{target.staged}"),
            "diff": name(*staging.diff(target)),
            "live": name(*target.path),
            "built": name(*staging.table(target)),
            "key": ident.SQL(", ").join(name("diff", one) for one in target.key),
            "live_image": _image("live", columns),
            "built_image": _image("built", columns),
        } | {f"as_{side}": same_key(target, side, "diff") for side in ("live", "built", "before")}
        if self._hooks:
            run(
                connection,
                "CREATE {unlogged} TABLE {before} AS SELECT {key}, {live_image} AS image FROM {diff} AS diff "
                "JOIN {live} AS live ON {as_live}",
                **self._parts,
            )

    def require(self) -> None:
        """After the merge: every key has the row that it should have. Raises ReloadRefused with the counts."""
        if not self._hooks:
            return
        [(added, deleted, changed)] = rows(
            self._connection,
            "SELECT count(*) FILTER (WHERE live.tableoid IS NULL AND built.tableoid IS NOT NULL), "
            "count(*) FILTER (WHERE live.tableoid IS NOT NULL AND built.tableoid IS NULL), "
            "count(*) FILTER (WHERE {live_image} = before.image AND {built_image} <> before.image "
            "AND live.tableoid IS NOT NULL AND built.tableoid IS NOT NULL) "
            "FROM {diff} AS diff LEFT JOIN {live} AS live ON {as_live} LEFT JOIN {built} AS built ON {as_built} "
            "LEFT JOIN {before} AS before ON {as_before}",
            **self._parts,
        )
        if added or deleted or changed:
            why = (
                f"{self._target.name}: {added} rows were not added, {changed} not changed and {deleted} not deleted, "
                f"though the merge wrote them: {', '.join(self._hooks)} kept them as they were. Nothing was changed; "
                "let it pass what this role writes (or disable it for the cut-over), and start another run"
            )
            raise ReloadRefused([why])


def _image(side: str, columns: Sequence[str]) -> ident.Composed:
    return ident.SQL("ROW({})::text").format(ident.SQL(", ").join(name(side, one) for one in columns))
