"""The command line that ``run --workers`` gives to its children."""

from __future__ import annotations

import pytest

from seekpoint.cli.run import without_options


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("run m:p --workers 4 --schema s", "run m:p --schema s"),
        ("run --workers=4 m:p --listen=[::1]:80", "run m:p"),
        ("--traceback run --listen 0.0.0.0:80 --workers 2 m:p", "--traceback run m:p"),
        ("run m:p", "run m:p"),
    ],
)
def test_children_get_the_command_line_without_the_parents_options(words: str, kept: str) -> None:
    assert without_options(words.split(), "--workers", "--listen") == kept.split()
