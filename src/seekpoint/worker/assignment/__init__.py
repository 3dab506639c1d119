"""From Kafka's assignment to a claimed, placed partition, and back."""

from seekpoint.worker.assignment.assignment import Assignment
from seekpoint.worker.assignment.backlogs import Alone, SuspectPart, Turns
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.standby import StandBy

__all__ = ["Alone", "Assignment", "Chunk", "Read", "StandBy", "SuspectPart", "Turns"]
