"""Core of the local inference engine: scheduler, caches, sampling and weight updates, without HTTP.

`miles_megatron.engine.core.EngineCore` is the way in; this module imports nothing heavy.
"""
