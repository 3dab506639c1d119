"""Tables in generations: a view, the tables that it may select from, and the row that names the current one."""
