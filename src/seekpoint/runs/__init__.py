"""A run of a reload, verification or batch as a row of the ledger: its steps, and its administration."""
