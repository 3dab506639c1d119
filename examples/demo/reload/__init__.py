"""``make demo-reload``: the table of flights, rebuilt three times by other code while nothing stands still.

Two workers apply flights, and flights go on being produced. A reader asks all the time whether every row is of the one
version that the ledger names, and whether the rows are those of its offsets. Each reload publishes in another way, and
each finds a worker killed in its middle. :mod:`~demo.reload.show` performs it,
:mod:`~demo.reload.handling` has the versions of the code, :mod:`~demo.reload.worker_pool` the
workers of each, :mod:`~demo.reload.load` what is produced, :mod:`~demo.reload.reader`
reads, and :mod:`~demo.reload.judge` computes the table again, without the library.
"""
