"""The ledger's SQL statements: those of workers, and those of operators and jobs."""
