"""Live tables and what a run builds beside them: targets, constraints, sequences, dependencies."""
