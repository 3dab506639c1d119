"""DataFrames between topics and tables: micro-batches of a SparkPipeline at the ledger's offsets."""
