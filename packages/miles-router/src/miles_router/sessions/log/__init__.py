"""The session log: every record on disk before its answer is given away, readable again after any crash."""
