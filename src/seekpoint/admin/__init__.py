"""A group's dead letters, for operators: list, replay, discard, export. Changes can be planned first."""

from seekpoint.ledger.dead_letters import Where
from seekpoint.worker.replay.dead_letter_admin import Chosen, DeadLetterAdmin, Discarded, group_of, portable
from seekpoint.worker.replay.replay import DeadLetterReplay, Planned, Summary
from seekpoint.worker.replay.replay_one import Replayed

__all__ = [
    "Chosen",
    "DeadLetterAdmin",
    "DeadLetterReplay",
    "Discarded",
    "Planned",
    "Replayed",
    "Summary",
    "Where",
    "group_of",
    "portable",
]
