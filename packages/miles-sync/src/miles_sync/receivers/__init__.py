"""The engine's side of a push: reading what a transport offers, and the client that talks to an engine."""
