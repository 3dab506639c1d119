"""Live tables and a run's copies of them: targets, constraints, generations, handlers' redirected statements."""
