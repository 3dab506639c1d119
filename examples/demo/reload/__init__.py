"""``make demo-reload``: the table of flights, rebuilt twice by new code while workers run.

Two workers apply flights, and flights are produced meanwhile. A reader checks all the time that every row is of the
version that the ledger names, and that the rows are those of its offsets. Each reload has another strategy, and a
worker is killed in the middle of each. :mod:`~demo.reload.show` performs it,
:mod:`~demo.reload.handling` has the versions of the code, :mod:`~demo.reload.worker_pool` the
workers of each, :mod:`~demo.reload.load` what is produced, :mod:`~demo.reload.reader`
reads, and :mod:`~demo.reload.judge` computes the table again, without the library.
"""
