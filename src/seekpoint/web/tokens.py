"""Tokens of forms, each bound to user, form and plan, and valid once."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from time import time

LIFETIME = 3600.0  # seconds


class Tokens:
    """Issues tokens and redeems each once. ``secret`` is shared by processes that serve the same users.

    Only this process remembers its redeemed tokens. Another process refuses the plan instead: under a lock, it compares
    the group's last action of that kind, or the dead letters, with those in the plan.
    """

    def __init__(self, secret: bytes | None = None, clock: Callable[[], float] = time) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._clock = clock
        self._redeemed: dict[str, float] = {}  # until when each redeemed token is remembered
        self._lock = threading.Lock()

    def issue(self, user: str, form: str, plan: bytes) -> str:
        """A token that is valid for an hour, for one POST of this form with this plan by this user."""
        head = f"{secrets.token_urlsafe(16)}.{self._clock() + LIFETIME:.0f}"
        return f"{head}.{self._signature(head, user, form, plan)}"

    def redeem(self, token: str, user: str, form: str, plan: bytes) -> bool:
        """Whether the token is valid for this user, form and plan, not expired, and not redeemed before."""
        head, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(head, user, form, plan).encode()):
            return False
        until, now = float(head.rpartition(".")[2]), self._clock()
        with self._lock:
            self._redeemed = {redeemed: end for redeemed, end in self._redeemed.items() if end > now}
            if until <= now or token in self._redeemed:
                return False
            self._redeemed[token] = until
            return True

    def _signature(self, head: str, user: str, form: str, plan: bytes) -> str:
        # Lengths come first: no two sequences of parts have the same text.
        parts = [part if isinstance(part, bytes) else part.encode() for part in (head, user, form, plan)]
        text = b"".join(b"%d:%s" % (len(part), part) for part in parts)
        return hmac.new(self._secret, text, "sha256").hexdigest()
