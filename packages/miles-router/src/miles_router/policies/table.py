"""The policies by name, and how a command line writes them."""

from typing import Annotated

from pydantic import Field

from miles_core.config import Config, build
from miles_router.choices import choice_of
from miles_router.policies.cache_aware import CacheAwareConfig
from miles_router.policies.least_active import LeastActiveConfig
from miles_router.policies.plugin import PluginPolicyConfig
from miles_router.policies.power_of_two import PowerOfTwoConfig
from miles_router.policies.round_robin import RoundRobinConfig
from miles_router.policies.session_affinity import SessionAffinityConfig

PolicyConfig = Annotated[
    LeastActiveConfig
    | RoundRobinConfig
    | PowerOfTwoConfig
    | SessionAffinityConfig
    | CacheAwareConfig
    | PluginPolicyConfig,
    Field(discriminator="type"),
]
"""One line a policy."""

POLICY_NAMES = ("least_active", "round_robin", "power_of_two", "session_affinity", "cache_aware")
"""The built-in ones, as a command line names them."""


class _Chosen(Config):
    policy: PolicyConfig = LeastActiveConfig()


def policy_of(text: str) -> PolicyConfig:
    """The policy that `NAME[,option=value...]` means; ConfigError otherwise. See `choice_of`."""
    return build(_Chosen, [("the command line", {"policy": choice_of(text)})]).config.policy
