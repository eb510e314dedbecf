"""Comparison of runs: `python -m tandem compare RUNS...`."""
