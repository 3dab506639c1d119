"""Live tables and a run's copies of them: targets, constraints, handlers' redirected statements."""
