"""The vocabulary of Miles: records, configuration, plug-ins, data, rewards and rollouts."""

__version__ = "0.1.0"
