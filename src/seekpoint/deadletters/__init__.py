"""Dead letters: records that were passed and not applied, whole, in the transaction that passed them (I1, I4).

The one place with SQL on ``dead_letter``, but for a move, which supersedes those at or past its position.
"""

from seekpoint.deadletters.deadletters import DeadLetters
from seekpoint.deadletters.letter import DeadLetter

__all__ = ["DeadLetter", "DeadLetters"]
