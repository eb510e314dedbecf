"""What runs say when they are laid beside each other: `python -m tandem.compare RUNS...`."""
