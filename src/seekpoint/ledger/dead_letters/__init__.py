"""Dead letters: records that were passed and not applied, stored in the transaction that passed them (I1, I4).

Only this package writes ``dead_letter``, except that a reset supersedes those at or past its position. Two others read
it: a wait for a record (``ledger.wait``), and the look-up of a dead letter's group (``worker.replay.statements``).
"""

from seekpoint.ledger.dead_letters.dead_letter import DeadLetter, name_bytes
from seekpoint.ledger.dead_letters.store import DeadLetters

__all__ = ["DeadLetter", "DeadLetters", "name_bytes"]
