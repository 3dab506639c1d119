"""Spark's part of the jobs: reads, stages and exports ranges in tasks. Needs the extra ``spark``."""
