"""``python -m peers.locks [NAME]..``: resolves the peers' dependencies again, and writes them to ``locks/``.

A Python environment is a ``.txt`` of pinned versions; a class path is a ``.jars`` of Maven coordinates with their
SHA-256. Nothing else is installed or loaded.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jgo.maven
import uv

LOCKS = Path(__file__).parent / "locks"

# The tutorials' loops were timed with kafka-python 2.2; 3 is the current version.
ENVIRONMENTS = {
    "kafka-python": ["kafka-python==3.0.12", "psycopg[binary]==3.3.9"],
    "kafka-python-crc32c": ["kafka-python==3.0.12", "crc32c==2.9.post0", "psycopg[binary]==3.3.9"],
    "kafka-python-2": ["kafka-python==2.2.21", "psycopg[binary]==3.3.9"],
    "kafka-python-2-crc32c": ["kafka-python==2.2.21", "crc32c==2.9.post0", "psycopg[binary]==3.3.9"],
    "quix": ["quixstreams[postgresql]==3.28.1"],
    "pathway": ["pathway==0.33.0"],
    "spark": ["pyspark==4.2.0"],
}

_DRIVER = "org.postgresql:postgresql:42.7.14"
# Groups, resolved one by one: an artifact keeps the version of the first group that has it, because a connector's older
# Flink would otherwise replace the one that is named here.
CLASSPATHS = {
    "flink": [
        [
            "org.apache.flink:flink-clients:2.2.0",
            "org.apache.flink:flink-connector-base:2.2.0",
            "org.apache.flink:flink-json:2.2.0",
            "org.apache.flink:flink-table-api-java-bridge:2.2.0",
            "org.apache.flink:flink-table-planner-loader:2.2.0",
            "org.apache.flink:flink-table-runtime:2.2.0",
        ],
        ["org.apache.flink:flink-connector-kafka:5.0.0-2.2"],
        ["org.apache.flink:flink-connector-jdbc-core:4.0.0-2.0"],
        ["org.apache.flink:flink-connector-jdbc-postgres:4.0.0-2.0"],
        [_DRIVER],
    ],
    "compiler": [["org.eclipse.jdt:ecj:3.43.0"]],
    "connect": [
        ["org.apache.kafka:connect-runtime:4.3.1", "org.apache.kafka:connect-json:4.3.1"],
        ["org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"],
    ],
    "debezium": [["io.debezium:debezium-connector-jdbc:3.5.0.Final"]],
    "spark": [[_DRIVER]],
}
# Drivers of other databases, and jars that the Connect worker already has when it loads the plugin.
LEFT_OUT = {
    "flink": {"tools.profiler:async-profiler"},
    "debezium": {
        "com.fasterxml.jackson.core:jackson-annotations",
        "com.fasterxml.jackson.core:jackson-core",
        "com.fasterxml.jackson.core:jackson-databind",
        "com.microsoft.sqlserver:mssql-jdbc",
        "com.mysql:mysql-connector-j",
        "com.oracle.database.jdbc:ojdbc11",
        "org.apache.kafka:connect-api",
        "org.apache.kafka:kafka-clients",
        "org.mariadb.jdbc:mariadb-java-client",
        "org.slf4j:slf4j-api",
    },
}


def lock_environment(name: str) -> None:
    """Write ``locks/NAME.txt``."""
    command = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header", "-"]
    wanted = "\n".join(ENVIRONMENTS[name])
    done = subprocess.run(command, input=wanted, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} does not resolve:\n{done.stderr}")
    (LOCKS / f"{name}.txt").write_text(done.stdout, encoding="ascii")


def lock_classpath(name: str) -> None:
    """Write ``locks/NAME.jars``."""
    settled: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        context = jgo.maven.MavenContext(repo_cache=Path(folder), timeout=60)
        for group in CLASSPATHS[name]:
            roots, further = context.resolver.resolve([context.create_dependency(artifact) for artifact in group])
            for dependency in (*roots, *further):
                where = f"{dependency.groupId}:{dependency.artifactId}"
                if where in settled or where in LEFT_OUT.get(name, ()):
                    continue
                jar = dependency.artifact.resolve()
                with jar.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                settled[where] = f"{digest} {where}:{dependency.version}\n"
    (LOCKS / f"{name}.jars").write_text("".join(line for _, line in sorted(settled.items())), encoding="ascii")


def main(names: Sequence[str]) -> None:
    """Renew these locks; all if none is named."""
    for name in ENVIRONMENTS:
        if not names or name in names:
            lock_environment(name)
    for name in CLASSPATHS:
        if not names or name in names:
            lock_classpath(name)


if __name__ == "__main__":
    main(sys.argv[1:])
