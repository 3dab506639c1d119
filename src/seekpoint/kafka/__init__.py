"""Everything that speaks to Kafka: the keys we own, the client, identities, watermarks."""
