"""``make demo-reload``: the table of flights, rebuilt twice by other code while workers run.

Two workers apply flights, and flights are produced meanwhile. A reader checks all the time that every row is of the
version that the ledger names, and that the rows are those of its offsets. Each reload publishes in another way, and
each finds a worker killed in its middle. :mod:`~demo.reload.show` performs it,
:mod:`~demo.reload.handling` has the versions of the code, :mod:`~demo.reload.worker_pool` the
workers of each, :mod:`~demo.reload.load` what is produced, :mod:`~demo.reload.reader`
reads, and :mod:`~demo.reload.judge` computes the table again, without the library.
"""
