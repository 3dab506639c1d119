"""Runs, verifies and reloads SparkPipelines, in micro-batches that begin at the ledger's offsets."""
