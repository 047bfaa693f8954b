"""A policy of the user's own."""

from typing import Any, Literal

from pydantic import Field

from miles_core import plugins
from miles_core.config import Config
from miles_core.errors import PluginError
from miles_router.policies.policy import Policy


class PluginPolicyConfig(Config):
    """A policy of your own: a subclass of `miles_router.policies.policy.Policy`, or a function that returns one."""

    type: Literal["plugin"] = "plugin"
    name: str
    """`module:attribute`, `file.py:attribute`, or an entry point of the group `miles.router_policies`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments it is called with."""

    def build(self) -> Policy:
        """The policy; PluginError when it cannot be loaded or is not one."""
        made = plugins.load("router_policies", self.name, options=self.options)(**self.options)
        if not isinstance(made, Policy):
            raise PluginError(
                f"router_policies plug-in {self.name!r}: expected a miles_router.policies.policy.Policy, "
                f"found {type(made).__name__}."
            )
        return made
