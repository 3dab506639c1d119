"""Who carries a plan out, and why; both are stored with the action."""

from __future__ import annotations

from typing import NamedTuple

from seekpoint.ledger.admin_actions import operator, required


class Attribution(NamedTuple):
    """Actor and reason, as Postgres can store them."""

    actor: str
    reason: str

    @classmethod
    def of(cls, actor: str | None, reason: str) -> Attribution:
        """The actor is the operating system's user by default. Raises ConfigError if the reason is blank."""
        return cls(operator(actor), required("reason", reason))
