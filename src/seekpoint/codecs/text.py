"""Text and plain bytes."""

from __future__ import annotations

from typing import Generic, Literal, overload

from typing_extensions import TypeVar

S_co = TypeVar("S_co", covariant=True, default=str)
B_co = TypeVar("B_co", covariant=True, default=bytes)


class Text(Generic[S_co]):
    """Decode bytes as text, strictly: a record whose bytes are invalid in ``encoding`` is poison."""

    @overload
    def __init__(self: Text[str], encoding: str = "utf-8", *, tombstones: Literal[False] = False) -> None: ...
    @overload
    def __init__(self: Text[str | None], encoding: str = "utf-8", *, tombstones: bool) -> None: ...
    def __init__(self, encoding: str = "utf-8", *, tombstones: bool = False) -> None:
        self.encoding = encoding
        self.tombstones = tombstones

    def __call__(self, data: bytes) -> S_co:
        return data.decode(self.encoding)  # type: ignore[return-value]  # a null value never comes here

    def __repr__(self) -> str:
        return f"Text({self.encoding!r})"


class Bytes(Generic[B_co]):
    """Return the bytes unchanged."""

    @overload
    def __init__(self: Bytes[bytes], *, tombstones: Literal[False] = False) -> None: ...
    @overload
    def __init__(self: Bytes[bytes | None], *, tombstones: bool) -> None: ...
    def __init__(self, *, tombstones: bool = False) -> None:
        self.tombstones = tombstones

    def __call__(self, data: bytes) -> B_co:
        return data  # type: ignore[return-value]  # a null value never comes here

    def __repr__(self) -> str:
        return "Bytes()"
