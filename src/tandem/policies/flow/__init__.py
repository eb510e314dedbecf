"""The flow policy: any diffusion transformer that predicts velocities, and its families."""
