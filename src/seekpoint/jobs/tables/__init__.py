"""Handlers that are rebuilt: copies of their tables, and what keeps them there; frames that stand in for the past."""
