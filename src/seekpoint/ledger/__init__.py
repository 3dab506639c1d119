"""The ledger: the tables with each partition's position and claim, and the statements that write them.

Jobs run some of these statements in separate transactions; a cut-over also copies the dead letters that its run staged.

The protocol in four sentences. A *claim* draws a new token for a partition and returns its committed position, after
any transaction in flight has ended. *Hold*, the first statement of a worker's transaction, locks the rows whose token
and position are the expected ones. *Advance* compares again and moves the positions; between it and COMMIT, the worker
may only record attempts. A process that resets a position without owning the partition draws a new token, which fences
the owner.
"""

from seekpoint.ledger.admin_actions import LastReset
from seekpoint.ledger.advance import Expected, Move
from seekpoint.ledger.attempts import SuspectNote
from seekpoint.ledger.claim import Attempt, Claim, Claimed, StartOffsets
from seekpoint.ledger.ledger import GroupLedger
from seekpoint.ledger.own_loop import Ledger, group_ledger
from seekpoint.ledger.positions import Position, Stop
from seekpoint.ledger.wait import Passed

__all__ = [
    "Attempt",
    "Claim",
    "Claimed",
    "Expected",
    "GroupLedger",
    "LastReset",
    "Ledger",
    "Move",
    "Passed",
    "Position",
    "StartOffsets",
    "Stop",
    "SuspectNote",
    "group_ledger",
]
