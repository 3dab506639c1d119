"""The command ``seekpoint``.

Exit codes, the same for every command:

- 0: all is well; a worker was asked to stop and has drained.
- 1: the thing failed or is not as it should be: a server does not answer, a right or a table is missing, a
  partition stopped, a row differs. Fix what the sentence names and try again.
- 2: the command, its configuration or the pipeline is wrong; trying again alone does not help.
- 130: aborted: Ctrl-C (or a second SIGTERM) before the work was drained.

What went wrong is one readable message on stderr, without a traceback (``seekpoint --traceback …`` adds it) and
without a password.
"""
