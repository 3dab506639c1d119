"""Selects, replays and discards dead letters; ``seekpoint.admin`` is the public module."""
