"""The base of our strict models, and how their faults are told."""

from pydantic import BaseModel, ConfigDict, ValidationError


class Strict(BaseModel):
    """Frozen, of exact types, with finite numbers; an unknown field is a fault."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_name=True,
        allow_inf_nan=False,
        defer_build=True,  # a part of another model never needs a validator of its own
    )


def faults(error: ValidationError) -> str:
    """Tell every fault in one line: field and what is wrong with it."""
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'value'}: {fault['msg']}" for fault in error.errors()
    )
