"""Sweeps: many runs of one command line, each in its own process, and the table of the runs."""
