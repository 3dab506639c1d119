-- In the ledger's database: call.py's receipts, and the outbox.
CREATE TABLE receipts (key text PRIMARY KEY, account text NOT NULL, cents bigint NOT NULL, receipt text NOT NULL);

CREATE TABLE outbox (
    key text PRIMARY KEY,
    body jsonb NOT NULL,
    due_at timestamptz DEFAULT clock_timestamp(),  -- NULL: nothing more to do
    attempts int NOT NULL DEFAULT 0,
    error text,
    sent_at timestamptz,
    receipt text
);
CREATE INDEX ON outbox (due_at) WHERE due_at IS NOT NULL;

-- In the provider's database: one row for each key whose payout was paid, and the payouts.
CREATE TABLE inbox (key text PRIMARY KEY, body jsonb NOT NULL, receipt text NOT NULL);
CREATE TABLE paid (receipt text NOT NULL, account text NOT NULL, cents bigint NOT NULL);
