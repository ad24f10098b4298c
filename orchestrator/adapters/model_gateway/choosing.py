"""From ``--model`` and ``--effort`` to what will be asked, before anything starts."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.adapters.local_models import LocalModels
from orchestrator.adapters.model_gateway.auth import read_key
from orchestrator.adapters.model_gateway.recorded import Recording, read_header, read_prices
from orchestrator.adapters.model_gateway.source import Source
from orchestrator.adapters.model_gateway.trust import certificates
from orchestrator.domain.model import LOCAL, RECORDED, ModelName, Price, Provider
from orchestrator.domain.task import Budget
from orchestrator.errors import UsageError
from orchestrator.ports.models import ModelChoice

_FILE = "orch.toml"


def choose(
    providers: Mapping[str, Provider],
    variable: Callable[[str], str | None],
    model: str,
    effort: str,
    budget: Budget,
    local: LocalModels | None = None,
) -> ModelChoice:
    """Check that ``model`` can be asked; see ``ModelGateway.choose``."""
    try:
        named = ModelName.parse(model)
    except ValueError as error:
        raise UsageError(
            str(error), remedy=f"name one as PROVIDER/MODEL: {_list(providers)}"
        ) from error
    if named.provider == RECORDED:
        return read_header(Path(named.name), effort)
    if named.provider == LOCAL and local is not None:
        return local.choose(named.name, effort)
    provider = provider_of(providers, named)
    if provider.known and named.name not in provider.known:
        near = difflib.get_close_matches(named.name, provider.known, n=3) or provider.known
        raise UsageError(
            f"provider {named.provider} has no model {named.name!r}",
            remedy=f"try one of: {', '.join(near)}; or add it to {_FILE}",
        )
    priced = named.name in provider.prices or provider.local
    if budget.cost is not None and not priced:
        raise UsageError(
            f"the task limits the cost, and {model} has no price",
            remedy=f'add it to {_FILE}: [providers.{named.provider}.prices."{named.name}"] '
            "input = ..., output = ... (per million tokens)",
        )
    read_key(named.provider, provider, variable)
    certificates(provider)
    return ModelChoice(model, named.name, effort, provider.dialects, provider.base_url)


def provider_of(providers: Mapping[str, Provider], named: ModelName) -> Provider:
    """Find the provider that a model's name names.

    Raises:
        UsageError: there is none; near names are given.
    """
    provider = providers.get(named.provider)
    if provider is None:
        near = difflib.get_close_matches(named.provider, providers, n=3) or sorted(providers)
        raise UsageError(
            f"there is no provider {named.provider!r}",
            remedy=f"try one of: {', '.join(near)}; or add [providers.{named.provider}] to {_FILE}",
        )
    return provider


def open_recording(choice: ModelChoice) -> Source:
    """Open the recording that a choice names."""
    return Recording(Path(ModelName.parse(choice.model).name))


def recorded_prices(choice: ModelChoice) -> dict[str, Price]:
    """Say what tokens cost when a recording was made."""
    return read_prices(Path(ModelName.parse(choice.model).name))


def _list(providers: Mapping[str, Provider]) -> str:
    return ", ".join(f"{name}/..." for name in sorted(providers))
