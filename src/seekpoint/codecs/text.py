"""Text and plain bytes."""

from __future__ import annotations


class Text:
    """Decode bytes as text, strictly: bytes that are not ``encoding`` are a record's fault."""

    def __init__(self, encoding: str = "utf-8", *, tombstones: bool = False) -> None:
        self.encoding = encoding
        self.tombstones = tombstones

    def __call__(self, data: bytes) -> str:
        return data.decode(self.encoding)

    def __repr__(self) -> str:
        return f"Text({self.encoding!r})"


class Bytes:
    """Leave the bytes as they are."""

    def __init__(self, *, tombstones: bool = False) -> None:
        self.tombstones = tombstones

    def __call__(self, data: bytes) -> bytes:
        return data

    def __repr__(self) -> str:
        return "Bytes()"
