"""The worker: its loop, one unit of work, isolation of failing records, partitions and their claims."""
