"""Runs pytest on a few test files, with plugins of this suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.docs_pages import ROOT


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of the folder; ``-p`` names plugins."""
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
