"""Builds the adapters; nothing else imports them."""

from orchestrator.adapters.docker_engine import DockerEngine
from orchestrator.adapters.host_probe import HostProbe
from orchestrator.adapters.image_builder import ImageBuilder
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.config import Settings, bundled
from orchestrator.ports import Clock, ContainerEngine


def system_clock() -> Clock:
    """The host's own clocks."""
    return SystemClock()


def engine(settings: Settings) -> ContainerEngine:
    """The container engine that ``DOCKER_HOST`` names, or the one on the default socket."""
    return DockerEngine(settings.engine_address)


def image_builder(settings: Settings) -> ImageBuilder:
    """What makes and lists the images of ``containers/``."""
    return ImageBuilder(settings.engine_address, bundled("containers"), settings.wheels)


def host_probe(settings: Settings) -> HostProbe:
    """What looks at this host for ``orch doctor``."""
    return HostProbe(settings, engine(settings), system_clock())
