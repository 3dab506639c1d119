"""Stages ranges of the log in tables of a run, then builds one table per target from them."""
