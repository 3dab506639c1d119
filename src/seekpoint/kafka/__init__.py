"""Everything that talks to Kafka: configuration, consumer, topic and cluster ids, ends of logs, bounded ranges."""
