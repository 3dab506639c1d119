"""Real servers to throw away: a Postgres and a Kafka broker for the demo, for ``seekpoint dev`` and for tests.

- ``seekpoint.testing.servers.postgres.start_postgres``: one that is given, one in a container, or the embedded wheel.
- ``seekpoint.testing.servers.kafka.start_kafka``: one that is given, one in a container, or Apache Kafka's own jars.
- ``seekpoint.testing.servers.pair.start_pair``: both at the same time.

What is started here dies with the process that started it, and leaves no folder. Linux and macOS.
"""
