"""The process that ``run --workers`` starts: ``python -m seekpoint.cli.child_main DESCRIPTOR``."""

from __future__ import annotations

import sys

from seekpoint.cli.main import main as command
from seekpoint.cli.parent_link import attach


def main() -> None:
    """Run the command that the parent asks for, and report on the descriptor."""
    sys.argv = ["seekpoint", *attach(int(sys.argv[1]))]
    command()


if __name__ == "__main__":
    main()
