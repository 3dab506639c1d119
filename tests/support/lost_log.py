"""A log whose first records were deleted before a group has applied them."""

from __future__ import annotations

from seekpoint import Limits
from seekpoint.admin import Admin
from seekpoint.records import Partition
from support.log_changes import trim
from support.worker_group import WorkerGroup

OFTEN = Limits(idle_check=0.1, lag_check=0.1)


def admin_of(worker_group: WorkerGroup) -> Admin:
    return Admin(worker_group.engine, {"bootstrap.servers": worker_group.broker}, schema=worker_group.schema)


def lost_log(worker_group: WorkerGroup) -> str:
    """Make a topic of ten records, of which the group has applied three and the first five are deleted."""
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    worker_group.ledger.reset_offset(name, 0, 3, log=None, reason="a test")
    trim(worker_group.admin, name, 5)
    admin = admin_of(worker_group)
    worker_group.wait(lambda: not admin.plan_accept_lost(worker_group.group, Partition(name, 0)).is_done)
    return name
