"""The command in a forked process: ``Forked("support.cli_process", {"words": [...]})``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from seekpoint.cli import main as command
from seekpoint.cli.app import every_command

every_command()  # imported and built before the fork


def main(what: Mapping[str, Sequence[str]]) -> None:
    """Run ``seekpoint`` with these words."""
    sys.argv = ["seekpoint", *what["words"]]
    command.main()
