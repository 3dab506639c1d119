"""``python -m demo demo``, with ``examples`` on the path: what ``make demo`` runs."""

from __future__ import annotations

from demo.cli import app

app(prog_name="demo")
