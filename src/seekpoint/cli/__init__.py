"""The command ``seekpoint``.

Exit codes, the same for every command:

- 0: done, or nothing to do; a worker was asked to stop and has drained.
- 1: refused, or a problem was found: a right or a table is missing, a partition stopped, a row differs. Fix what the
  message names and try again.
- 2: the command, its configuration or the pipeline is wrong; without a fix, another attempt does not help.
- 3: brokers or database cannot be reached, or have ended the connection.
- 130: aborted: Ctrl-C (or a second SIGTERM) before the work was drained.

An error is one readable message on stderr, without a traceback (``seekpoint --traceback …`` adds it) and without a
password.
"""
