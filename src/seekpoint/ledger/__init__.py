"""The ledger: where each partition of a group stands, and who may move it. The one place that writes offsets.

The protocol in three sentences. A *claim* draws a new token for a partition and answers its committed
position, waiting for any transaction in flight. *Hold*, the first statement of every transaction, locks the
rows where token and position are exactly what the reader believes; *advance*, the last, moves them under the
same condition. A process that moves a position without owning it draws a new token, and so fences the owner.
"""

from seekpoint.ledger.admin_actions import LastReset
from seekpoint.ledger.advance import Expected, Move, SuspectNote
from seekpoint.ledger.claim import Attempt, Claim, Claimed, StartOffsets
from seekpoint.ledger.ledger import Ledger
from seekpoint.ledger.positions import Position, Stop
from seekpoint.ledger.wait import Passed

__all__ = [
    "Attempt",
    "Claim",
    "Claimed",
    "Expected",
    "LastReset",
    "Ledger",
    "Move",
    "Passed",
    "Position",
    "StartOffsets",
    "Stop",
    "SuspectNote",
]
