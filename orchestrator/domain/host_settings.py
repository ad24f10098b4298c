"""What the section ``[gpu]`` of ``orch.toml`` may hold."""

from pydantic import field_validator

from orchestrator.domain.quantity import Bytes
from orchestrator.domain.schema import Strict


class Permitted(Strict):
    """One permitted holder, as it is written there."""

    executable: str
    memory: Bytes

    @field_validator("executable")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f"{value!r} is not an absolute path")
        return value


class GpuSettings(Strict):
    """The section."""

    permitted: tuple[Permitted, ...] = ()
