"""The runs of a ledger: list, take over, abort, sweep, and report their progress."""
