"""What a run leaves for its reader: trajectories, a summary and a self-contained page."""
