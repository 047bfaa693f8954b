"""Keeps the groups that can teach something."""

from miles_core.protocols import Verdict
from miles_core.sample import Group


def reward_varies(group: Group) -> Verdict:
    """Keep a group whose rollouts have at least two different rewards; a constant group has no advantage.

    Rewards are compared exactly, one a rollout: siblings of a split rollout count once, aborted rollouts not at all.
    """
    rewards = set(group.rewards.values())
    if not rewards:
        return Verdict(False, "no rollout has a reward")
    if len(rewards) == 1:
        return Verdict(False, "every reward is the same")
    return Verdict(True)
