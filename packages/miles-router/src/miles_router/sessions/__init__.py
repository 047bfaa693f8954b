"""The session server: one OpenAI-compatible URL per episode, exact tokens behind it."""
