"""What keeps a group out of training, and why."""
