"""Postgres: engines, a worker's session, the connection lent to handlers, pipelined statements, SQLSTATEs."""
