"""Postgres: engines, a worker's session, the handlers' connection, pipelined statements, SQLSTATEs."""
