"""Spark's part of the jobs: reading, staging and exporting ranges in tasks. Needs the extra: ``spark``."""
