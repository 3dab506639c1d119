"""A payment callback, twice: effects outside of this database, made safe by a key.

A topic says which payouts are due; a provider, elsewhere, pays them. Two ways lead there, and both may tell the
provider the same thing twice: what makes it happen once is the key that goes with it (``keys``), and a receiver that
refuses to do a key's work a second time (``provider``).

- ``call``: the handler calls the provider, and keeps the receipt in the transaction that moves the offset.
- ``outbox``: the handler writes the order down in that transaction; ``relay`` sends what is written down.

``tables.sql`` has the tables: those of ``call`` and ``outbox`` are beside the ledger, the others at the provider's.
"""
