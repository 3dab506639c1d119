"""The runs of a ledger: list them, report their progress, sweep what dead runs left."""
