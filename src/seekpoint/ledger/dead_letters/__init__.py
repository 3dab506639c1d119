"""Dead letters: records that were passed and not applied, whole, in the transaction that passed them (I1, I4).

The one place that writes ``dead_letter``, but for a move, which supersedes those at or past its position. Two others
read a row of it: a wait for a record (``ledger.wait``), and a look-up of its group (``admin.statements``).
"""

from seekpoint.ledger.dead_letters.dead_letter import DeadLetter, name_bytes
from seekpoint.ledger.dead_letters.store import DeadLetters

__all__ = ["DeadLetter", "DeadLetters", "name_bytes"]
