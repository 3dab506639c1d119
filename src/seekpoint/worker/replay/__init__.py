"""Dead letters selected, replayed and discarded; ``seekpoint.admin`` is the public module."""
