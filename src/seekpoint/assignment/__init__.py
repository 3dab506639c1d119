"""From Kafka's assignment to a claimed, placed partition, and back."""

from seekpoint.assignment.assignment import Assignment
from seekpoint.assignment.chunk import Chunk, Read

__all__ = ["Assignment", "Chunk", "Read"]
