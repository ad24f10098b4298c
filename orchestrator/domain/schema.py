"""What every model of a task is built of: the strict base, and texts of a certain form."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _relative(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in value:
        raise ValueError(f"{value!r} must be a relative path inside the pack")
    return value


def _asset_path(value: str) -> str:
    if PurePosixPath(value).parts[0] not in {"models", "data"}:
        raise ValueError(f"asset {value!r} must lie under models/ or data/")
    return value


def plain_path(value: str) -> str:
    """Refuse a path that can be written in a plainer way."""
    if str(PurePosixPath(value)) != value:
        raise ValueError(f"{value!r} must be written as {str(PurePosixPath(value))!r}")
    return value


RelativePath = Annotated[str, AfterValidator(_relative)]
ImagePath = Annotated[str, Field(pattern=r"^/[!-~]+$")]
FilePath = Annotated[RelativePath, AfterValidator(plain_path)]
AssetPath = Annotated[RelativePath, AfterValidator(_asset_path)]
Digest = Annotated[str, Field(pattern=r"^tree:v1:sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """Base of every model here: frozen, and an unknown key is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)
