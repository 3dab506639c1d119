"""``make demo-cdc``: a table of one Postgres schema, copied to another by Debezium, Kafka and two workers, under kills.

Debezium runs in Kafka Connect, reads the changes by logical decoding, and is killed, too: it then sends changes again.
:mod:`~demo.cdc.show` performs the demo, :mod:`~demo.cdc.connect` runs Connect, :mod:`~demo.cdc.changes` changes the
source's table, and :mod:`~demo.cdc.tables` has both tables and the pipeline.
"""
