"""The command, called in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.testing import CliRunner, Result

from seekpoint.cli.app import app


def seekpoint(
    *words: str,
    exits: int = 0,
    width: int = 200,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes = "",
    command: Any = app,
) -> Result:
    """Run ``seekpoint`` with these words; fails for a traceback or another exit code than ``exits``."""
    plain = {"COLUMNS": str(width), "NO_COLOR": "1", **(env or {})}
    result = CliRunner().invoke(command, list(words), input=stdin, env=plain)
    assert result.exception is None or isinstance(result.exception, SystemExit), "no traceback for the user"
    assert "Traceback" not in result.stderr
    assert result.exit_code == exits, result.output
    return result
