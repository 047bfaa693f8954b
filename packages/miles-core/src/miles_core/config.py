"""Base of every configuration: strict, frozen, explained."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A frozen pydantic model that refuses unknown keys; the docstring under a field is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
