"""Records as Arrow tables: column types, and a batch's records as a table. Needs the extra: ``arrow``."""
