"""The command in a process of its own, which is forked: ``Forked("support.cli_process", {"words": [...]})``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from seekpoint.cli import app  # noqa: F401 -- imported before the fork
from seekpoint.cli import main as command


def main(what: Mapping[str, Sequence[str]]) -> None:
    """Run ``seekpoint`` with these words."""
    sys.argv = ["seekpoint", *what["words"]]
    command.main()
