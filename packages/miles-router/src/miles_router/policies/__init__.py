"""Which worker gets a call: one policy a file."""
