"""The flow policy: a diffusion transformer that predicts velocities, and the model families."""
