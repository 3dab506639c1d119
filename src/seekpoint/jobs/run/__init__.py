"""A job's run: its rows in the ledger, its transactions, retries and pauses."""
