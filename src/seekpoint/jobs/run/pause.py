"""What a batch holds of its group while it runs: the pause that keeps workers away, and its name as the owner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, Uuid, bindparam, null, update

from seekpoint.ledger.group_connection import GroupConnection
from seekpoint.ledger.move import set_paused
from seekpoint.ledger.sql.worker import GROUP, READ_GROUP
from seekpoint.ledger.tables import partition_offset

PAUSER = "batch "  # and the run's id: who paused the group, as its row says

# A batch claims under its run's id. An owner that is left behind would pass for a worker that is alive.
DISOWN = (
    update(partition_offset)
    .where(partition_offset.c.consumer_group == GROUP, partition_offset.c.owner == bindparam("its_run", type_=Uuid))
    .values(owner=null())
)


def pauser(run: UUID) -> str:
    """Who paused the group, as its row says: by this it is known which pause a batch takes back."""
    return f"{PAUSER}{run}"


def let_go(connection: Connection, schema: str, run: UUID, groups: Sequence[str], reason: str) -> None:
    """Give the groups back, in the transaction that ends a batch: workers claim, and go on where it ended.

    A pause by anybody else stays. Of a run that is no batch there is nothing to give back.
    """
    for group in sorted(groups):
        scope = GroupConnection(connection, schema, group)
        row = scope.execute(READ_GROUP).one_or_none()
        if row is not None and row.paused and row.paused_by == pauser(run):
            set_paused(scope, False, actor=pauser(run), reason=reason)
        scope.execute(DISOWN, its_run=run)
