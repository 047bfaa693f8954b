"""What may stand around the proxied calls: one kind a file."""
