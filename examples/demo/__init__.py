"""``make demo``: applies a real topic to a real table while workers are killed and frozen, and compares every row.

- :mod:`~demo.flights`: the data, the table and the pipeline.
- :mod:`~demo.worker_process`: the program that each worker process runs.
- :mod:`~demo.worker_pool`: the worker processes.
- :mod:`~demo.faults`: the faults, step by step.
- :mod:`~demo.report`: the comparison of the table with the input, and the report.
- :mod:`~demo.show`: the demo from start to end.
"""
