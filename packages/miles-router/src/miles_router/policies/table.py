"""The policies by name, and how a command line writes them."""

from typing import Annotated, Any

from pydantic import Field

from miles_core.config import Config, build, parse_override
from miles_core.errors import ConfigError
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
    """The policy that `NAME[,option=value...]` means; a NAME with a colon is a plug-in. ConfigError otherwise.

    `session_affinity,load_factor=1.5`, `mine.py:Policy,seed=3`.
    """
    name, *given = text.split(",")
    options: dict[str, Any] = {}
    for option in given:
        if "=" not in option or option.startswith("type="):
            raise ConfigError(f"policy {text!r}: expected NAME,option=value, found {option!r}.")
        options |= parse_override(option)
    table = {"type": "plugin", "name": name, "options": options} if ":" in name else {"type": name, **options}
    return build(_Chosen, [("the command line", {"policy": table})]).config.policy
