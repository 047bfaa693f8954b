"""How long each wait of a push may take."""

from pydantic import Field

from miles_core.config import Config


class Deadlines(Config):
    """Seconds for each call to an engine; an engine that takes longer has failed this push."""

    pause_s: float = Field(default=60.0, gt=0)
    """Until no step of the engine is running."""
    begin_s: float = Field(default=30.0, gt=0)
    """Until the engine has opened a transaction."""
    stage_s: float = Field(default=300.0, gt=0)
    """Until the engine has copied and verified one bucket (or one folder)."""
    commit_s: float = Field(default=60.0, gt=0)
    """Until the engine serves the new version."""
    resume_s: float = Field(default=30.0, gt=0)
    """Until the engine goes on generating."""
    recover_s: float = Field(default=5.0, gt=0)
    """For each of the calls that bring a failed engine back to its old version."""
    gather_s: float = Field(default=600.0, gt=0)
    """Until the trainer has yielded the tensors of one bucket."""
