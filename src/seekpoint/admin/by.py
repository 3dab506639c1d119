"""Who carries a plan out, and why: both are stored with what was done."""

from __future__ import annotations

from typing import NamedTuple

from seekpoint.ledger.admin_actions import operator, required


class By(NamedTuple):
    """Actor and reason, as Postgres can store them."""

    actor: str
    reason: str

    @classmethod
    def of(cls, actor: str | None, reason: str) -> By:
        """Without an actor it is the operating system's user. Raises ConfigError where the reason is blank."""
        return cls(operator(actor), required("reason", reason))
