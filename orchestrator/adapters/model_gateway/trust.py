"""Which certificates a connection to a provider trusts."""

import ssl

from orchestrator.domain.model import Provider
from orchestrator.errors import UsageError


def certificates(provider: Provider) -> ssl.SSLContext | bool:
    """Choose what to trust; reading certificates costs, so not for a plain connection.

    Raises:
        UsageError: the bundle cannot be read.
    """
    if provider.ca_bundle is None:
        return provider.base_url.startswith("https:")
    try:
        return ssl.create_default_context(cafile=provider.ca_bundle)
    except OSError as error:
        raise UsageError(
            f"ca_bundle {provider.ca_bundle}: {error.strerror or error}",
            remedy="name a readable file of PEM certificates in orch.toml",
        ) from error
