"""A job's run: its rows in the ledger, its driver and its transactions."""
