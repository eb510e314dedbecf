"""The record of a run: its directory, its plots, its mirrors."""
