"""Runs of reloads, verifications and batches, each a row of the ledger: their steps and administration."""
