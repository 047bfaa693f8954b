"""The built-in plug-ins of core: kind -> short name -> `module:attribute`. One line a plug-in."""

from collections.abc import Mapping

BUILTINS: Mapping[str, Mapping[str, str]] = {
    "rewards": {
        "agent_reward": "miles_core.rewards.agent_reward:agent_reward",
        "boxed": "miles_core.rewards.boxed:boxed_reward",
        "choice": "miles_core.rewards.choice:choice_reward",
        "f1": "miles_core.rewards.f1:f1_reward",
        "math": "miles_core.rewards.math:math_reward",
        "random": "miles_core.rewards.random:random_reward",
        "remote": "miles_core.rewards.remote:remote_reward",
    },
    "generates": {
        "agent": "miles_core.rollout.agent:agent",
        "single_turn": "miles_core.rollout.single_turn:single_turn",
    },
    "agents": {},
    "group_filters": {
        "reward_varies": "miles_core.filters.reward_varies:reward_varies",
    },
    "data_sources": {
        "jsonl": "miles_core.data.jsonl:JsonlSource",
    },
}
