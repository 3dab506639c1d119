"""Throwaway servers: a real Postgres and a real Kafka broker for the demo, for ``seekpoint dev`` and for tests.

- ``seekpoint.testing.servers.postgres.start_postgres``: a given server, a container, or the embedded wheel.
- ``seekpoint.testing.servers.kafka.start_kafka``: a given broker, a container, or Apache Kafka's own jars.
- ``seekpoint.testing.servers.pair.start_pair``: both at the same time.

Servers that are started here end with the process that started them, and leave no folder. Linux and macOS.
"""
