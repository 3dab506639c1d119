"""Postgres: engines, the connection lent to handlers, pipelined statements, what an SQLSTATE means."""
