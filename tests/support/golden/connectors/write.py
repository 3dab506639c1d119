"""``python write.py``: writes ``*.jsonl`` here again, by ``Connectors.java``. Needs a JDK of version 17 or newer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from seekpoint.testing.servers.jars import locked_jars
from seekpoint.testing.servers.java import find_java

HERE = Path(__file__).parent

if __name__ == "__main__":
    jars = os.pathsep.join(map(str, locked_jars(HERE / "connectors.jars")))
    command = [str(find_java()), "-cp", jars, str(HERE / "Connectors.java"), str(HERE)]
    sys.exit(subprocess.run(command, check=False).returncode)
