"""Claims and activates the partitions that Kafka assigns, and releases them."""

from seekpoint.worker.assignment.assignment import Assignment
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.scheduler import Scheduler, SingleAttempt, SuspectPart
from seekpoint.worker.assignment.worker_assignment import WorkerAssignment

__all__ = [
    "Assignment",
    "Chunk",
    "Read",
    "Resources",
    "Scheduler",
    "SingleAttempt",
    "SuspectPart",
    "WorkerAssignment",
]
