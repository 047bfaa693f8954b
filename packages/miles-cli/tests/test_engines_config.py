"""The configuration of local engines."""

from miles_cli.engines.local import LocalEngineConfig
from miles_megatron.engine.config import EngineConfig


def test_the_local_config_hands_the_core_its_part():
    config = LocalEngineConfig(threads=2, chunk=64, count=2)
    assert config.core_config() == EngineConfig(threads=2, chunk=64)
