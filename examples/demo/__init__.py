"""``make demo``: a real topic into a real table, with workers killed and frozen on the way, and the proof.

- :mod:`~demo.flights`: the data, the table and the pipeline.
- :mod:`~demo.worker_process`: the program that each worker process runs.
- :mod:`~demo.worker_pool`: those processes.
- :mod:`~demo.faults`: what is done to them, step by step.
- :mod:`~demo.report`: the table compared with the input, and what is reported of it.
- :mod:`~demo.show`: the whole performance.
"""
