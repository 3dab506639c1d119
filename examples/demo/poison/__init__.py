"""``make demo-poison``: the same flights, about one in a thousand broken, and nothing is lost.

Two workers apply them with a handler that has bugs: some records are refused, some fail for a while, two kill their
process. At the end dead letters are replayed with the handler fixed, and every record is accounted for.
:mod:`~demo.poison.show` performs it, :mod:`~demo.poison.kinds` says what is broken and
how, :mod:`~demo.poison.handling` is the pipeline, and :mod:`~demo.poison.judge` compares.
"""
