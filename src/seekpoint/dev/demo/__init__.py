"""``seekpoint demo``: a real topic into a real table, with workers killed and frozen on the way, and the proof.

- :mod:`~seekpoint.dev.demo.flights`: the data, the table and the pipeline.
- :mod:`~seekpoint.dev.demo.member`: the program that each worker process runs.
- :mod:`~seekpoint.dev.demo.crew`: those processes, seen from the demo.
- :mod:`~seekpoint.dev.demo.faults`: what is done to them, step by step.
- :mod:`~seekpoint.dev.demo.report`: the table compared with the input, and what is told of it.
- :mod:`~seekpoint.dev.demo.show`: the whole performance.
"""
