"""``seekpoint demo-reload``: the table of flights, rebuilt three times by other code while nothing stands still.

Two workers apply flights, and flights go on being produced. A reader asks all the time whether every row is of the one
version that the ledger names, and whether the rows are those of its offsets. Each reload publishes in another way, and
each finds a worker killed in its middle. :mod:`~seekpoint.dev.demo.reload.show` performs it,
:mod:`~seekpoint.dev.demo.reload.handling` has the versions of the code, :mod:`~seekpoint.dev.demo.reload.crew` the
workers of each, :mod:`~seekpoint.dev.demo.reload.load` what is produced, :mod:`~seekpoint.dev.demo.reload.reader`
reads, and :mod:`~seekpoint.dev.demo.reload.judge` computes the table again, without the library.
"""
