"""Settings for a Java that lives for seconds.

Half of its processor time would be for its optimizing compiler. Of the rest, loading classes takes a third in a broker
and half in a session of Spark: with the archives that ``tests/java_archives.py`` makes, they start with that much less.
"""

from __future__ import annotations

import sys
from pathlib import Path

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:cds=off -Xlog:cds+dynamic=off"
KAFKA, SPARK = (Path(sys.prefix) / f"{name}-classes.jsa" for name in ("kafka", "spark"))


def _with(archive: Path) -> str:
    """Java ignores an archive that another version of Java made, or that is of other jars."""
    return f" -XX:SharedArchiveFile={archive}" if archive.exists() else ""


#: The driver's options come after all others, so that Spark has its own archive.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": QUICK + _with(KAFKA), "SPARK_SUBMIT_OPTS": _with(SPARK)}
