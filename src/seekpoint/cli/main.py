"""Entry point; names the missing extra if Typer or Rich is not installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from seekpoint.cli.app import app  # noqa: PLC0415 -- needs Typer and Rich

        app()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            "error: the command needs Typer and Rich: pip install '/path/to/seekpoint[cli]' (a checkout or wheel)\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:  # the import of the commands may take long enough for a Ctrl-C
        sys.stderr.write("aborted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
