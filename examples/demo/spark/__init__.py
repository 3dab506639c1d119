"""``make demo-spark``: the flights through DataFrames, joined and added up, while drivers and tasks are killed.

A Spark driver is killed while tasks stage, another one in mid-transaction; Python processes of tasks are killed; two
drivers run at once. Each driver starts in an empty folder and continues at the ledger's positions.
:mod:`~demo.spark.show` performs it, :mod:`~demo.spark.handling` has the tables and the pipeline,
:mod:`~demo.spark.drivers` the drivers' processes, and :mod:`~demo.spark.sums` computes the sums in plain Python.
"""
