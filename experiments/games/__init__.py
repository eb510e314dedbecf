"""Three tasks of the embedded model in one run, each in its own environment: `data=games`."""
