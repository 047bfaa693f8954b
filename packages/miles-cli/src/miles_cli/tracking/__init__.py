"""Where a run's figures go: a file of JSON lines, and plain lines on a console."""
