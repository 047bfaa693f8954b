"""The run: read `loop.py` first, then `wiring.py`."""
