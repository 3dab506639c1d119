"""Masks passwords in a command's output, and writes out control characters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL

_IN_URL = re.compile(r"(://[^/\s:@]*:)(?!password@)[^/\s]*(@)")  # our own examples say user:password@host
_ASSIGNED = re.compile(
    r"(?i)((?:password|passwd|passphrase|secret|jaas\.config|key\.pem)['\"]?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)"
)
_SECRET_KEY = re.compile(r"(?i)password|passphrase|secret|jaas|key\.pem|oauthbearer\.config|kinit\.cmd")
_secrets: set[str] = set()


def keep_secret(url: URL | None = None, kafka: Mapping[str, Any] | None = None) -> None:
    """Mask these passwords in every message from now on."""
    if url is not None and url.password and url.password not in {url.username, url.database, url.host, "password"}:
        _secrets.add(str(url.password))
    for key, value in (kafka or {}).items():
        if _SECRET_KEY.search(key):
            _secrets.add(str(value))


def masked(text: str) -> str:
    """The text without passwords: those in URLs and in ``password=…``, and those given to :func:`keep_secret`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, "***")
    return _ASSIGNED.sub(r"\1***", _IN_URL.sub(r"\1***\2", text))


def plain(text: str, *, keep: str = "") -> str:
    """The text with control characters written out, except those in ``keep``."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def printable(text: str) -> str:
    """The text without passwords and control characters; it may quote a record."""
    return plain(masked(text), keep="\n\t")
