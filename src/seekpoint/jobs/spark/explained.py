"""The analyzed plan in the text of EXPLAIN EXTENDED, Spark's only public access to a plan, also for streams."""

from __future__ import annotations


def analyzed_text(explained: str) -> tuple[str, bool]:
    """The text of the plan, empty if there is none, and whether it is complete."""
    _, _, rest = explained.partition("== Analyzed Logical Plan ==\n")
    text, ended, _ = rest.partition("\n== Optimized Logical Plan ==")
    return text, bool(ended)
