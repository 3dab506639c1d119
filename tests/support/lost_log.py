"""A log whose first records were deleted before a group has applied them."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from seekpoint import Limits
from seekpoint.admin import Admin
from seekpoint.records import Partition
from support.kafka_postgres import Scene

OFTEN = Limits(idle_check=0.1, lag_check=0.1)


def admin_of(scene: Scene) -> Admin:
    return Admin(scene.engine, {"bootstrap.servers": scene.broker}, schema=scene.schema)


def lost_log(scene: Scene) -> str:
    """A topic of ten records, of which the group has applied three, and the first five are deleted."""
    name, _ = scene.log(10)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 10)
    run.stop()
    scene.ledger.reset_offset(name, 0, 3, log=None, reason="a test")
    for future in scene.admin.delete_records([TopicPartition(name, 0, 5)]).values():
        future.result(10)
    admin = admin_of(scene)
    scene.wait(lambda: not admin.plan_accept_lost(scene.group, Partition(name, 0)).is_done)
    return name
