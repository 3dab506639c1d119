"""Reading ranges of the log into tables of a run, and making one table of them."""
