"""From Kafka's assignment to a claimed, placed partition, and back."""

from seekpoint.assignment.assignment import Assignment
from seekpoint.assignment.chunk import Chunk, Read
from seekpoint.assignment.standby import StandBy
from seekpoint.assignment.turns import Alone, SuspectPart, Turns

__all__ = ["Alone", "Assignment", "Chunk", "Read", "StandBy", "SuspectPart", "Turns"]
