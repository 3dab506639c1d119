"""Real servers to throw away: a Postgres and a Kafka broker for the demo, for ``seekpoint dev`` and for tests.

- :func:`.postgres.start_postgres`: one that is given, one in a container, or the embedded wheel.
- :func:`.kafka.start_kafka`: one that is given, one in a container, or Apache Kafka's own jars.
- :func:`.pair.start_pair`: both at the same time.

What is started here dies with the process that started it, and leaves no folder behind. Linux and macOS.
"""
