"""``make demo-poison``: applies the same flights, about one in a thousand broken, and loses none.

Two workers apply them with a handler that has bugs: some records are refused, some fail for a while, two kill their
process. At the end dead letters are replayed with the handler fixed, and every record is accounted for.
:mod:`~demo.poison.show` performs the demo, :mod:`~demo.poison.kinds` breaks records,
:mod:`~demo.poison.handling` is the pipeline, and :mod:`~demo.poison.judge` compares.
"""
