"""The wire formats that clients speak, each over the same sessions: one folder per dialect, one table of them."""
