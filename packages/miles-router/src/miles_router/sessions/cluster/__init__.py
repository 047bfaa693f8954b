"""Several session server processes behind one port: each owns shards of the log, and takes over those of the dead."""
