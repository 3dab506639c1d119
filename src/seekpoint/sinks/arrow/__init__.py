"""Columns instead of rows, by Apache Arrow: :class:`AppendArrow`, and :func:`copy_into` for handlers.

Needs the extra: ``arrow``. ``Batch.arrow()`` gives a handler its batch as a table.
"""

from seekpoint.sinks.arrow.append import AppendArrow, copy_into

__all__ = ["AppendArrow", "copy_into"]
