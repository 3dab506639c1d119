"""Payments by an external provider, in two ways: effects outside of this database, made safe by an idempotency key.

A topic says which payouts are due; an external provider pays them. Both ways may send the provider a payout twice. It
is paid once, because it is sent with a key (``keys``), and the provider pays only once for each key (``provider``).

- ``call``: the handler calls the provider, and stores the receipt in the transaction that advances the offset.
- ``outbox``: the handler stores the payout in that transaction; ``relay`` sends what is stored.

``tables.sql`` has the tables: those of ``call`` and ``outbox`` are in the ledger's database, the others in the
provider's.
"""
