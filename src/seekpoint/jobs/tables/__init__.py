"""Live tables and their rebuilt counterparts: targets, constraints, sequences, dependencies."""
