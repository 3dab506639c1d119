"""Tables in generations: a view with a pointer, and the tables behind it."""
