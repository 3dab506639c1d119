"""Payments by an external provider, in two ways: effects outside of this database, made safe by an idempotency key.

A topic says which payouts are due; an external provider pays them. Both ways may send the provider the same payout
twice: it is paid once because of the key that is sent with it (``keys``), and because the provider does a key's work
only once (``provider``).

- ``call``: the handler calls the provider, and stores the receipt in the transaction that advances the offset.
- ``outbox``: the handler stores the payout in that transaction; ``relay`` sends what is stored.

``tables.sql`` has the tables: those of ``call`` and ``outbox`` are in the ledger's database, the others in the
provider's.
"""
