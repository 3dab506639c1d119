"""``make demo-reload``: rebuilds the table of flights twice with new code while workers run.

Two workers apply flights, and flights are produced meanwhile. A reader checks all the time that the rows are those of
the ledger's version and offsets. Each reload has another strategy, and a worker is killed in the middle of each.
:mod:`~demo.reload.show` performs the demo, :mod:`~demo.reload.handling` has the versions of the code,
:mod:`~demo.reload.worker_pool` the workers of each version, :mod:`~demo.reload.load` produces,
:mod:`~demo.reload.reader` reads, and :mod:`~demo.reload.judge` computes the table again, without the library.
"""
