"""``make demo-spark``: joins and sums the flights in DataFrames while drivers and tasks are killed.

A Spark driver is killed while tasks stage, another one inside a transaction; Python processes of tasks are killed; two
drivers run at once. Each driver starts in an empty folder and continues at the ledger's positions.
:mod:`~demo.spark.show` performs the demo, :mod:`~demo.spark.handling` has the tables and the pipeline,
:mod:`~demo.spark.drivers` the drivers' processes, and :mod:`~demo.spark.sums` computes the sums in plain Python.
"""
