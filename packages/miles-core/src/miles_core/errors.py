"""One error type per boundary that can be crossed wrongly; the message is one sentence with the facts."""


class MilesError(Exception):
    """Any failure that Miles explains: what was expected, what was found, what to do."""


class ConfigError(MilesError):
    """A recipe, option or combination of options that cannot be used."""


class PluginError(MilesError):
    """A plug-in name that cannot be resolved, or an object whose signature does not fit its extension point."""


class DataError(MilesError):
    """A prompt file or a line of it that cannot be used."""


class RecordError(MilesError, ValueError):
    """A record (span, sample, group, batch, message) whose invariants do not hold."""


class TokenError(MilesError):
    """Tokens that cannot be derived, extended or compared exactly."""


class EngineError(MilesError):
    """An inference engine that refused, failed or answered nonsense."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of the answer, None when there was none."""


class SessionError(MilesError):
    """The session server refused or could not assemble what was asked for."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RolloutError(MilesError):
    """So many rollouts failed that training on the rest would be pretence."""


class RewardError(MilesError):
    """A reward function that failed, ran past its deadline or returned no finite number."""


class WeightSyncError(MilesError):
    """A weight push that did not reach, or did not verify on, a receiver."""


class TrainError(MilesError):
    """A training step, checkpoint or export that cannot be done."""


class DeadlineError(MilesError, TimeoutError):
    """A wait that ran past its deadline; the message says what was waited for."""
