"""What the inner rooms need from the outside, as small protocols.

Adapters implement these; ``wiring`` picks them; ``adapters.in_memory`` ships a fake of each, and
one contract suite runs against fake and real alike.
"""

from orchestrator.ports.agents import Agent, AgentSession
from orchestrator.ports.engine import (
    Container,
    ContainerEngine,
    ContainerProcess,
    ContainerUse,
    LogSink,
    MemoryUse,
    OldImages,
)
from orchestrator.ports.host import (
    Clock,
    DeviceProbe,
    Guards,
    ProcessTable,
    SizeLimit,
    Views,
    Volume,
    Volumes,
)
from orchestrator.ports.trees import Blob, PatchRefused, StoredFile, Trees, TreeStore

__all__ = [
    "Agent",
    "AgentSession",
    "Blob",
    "Clock",
    "Container",
    "ContainerEngine",
    "ContainerProcess",
    "ContainerUse",
    "DeviceProbe",
    "Guards",
    "LogSink",
    "MemoryUse",
    "OldImages",
    "PatchRefused",
    "ProcessTable",
    "SizeLimit",
    "StoredFile",
    "TreeStore",
    "Trees",
    "Views",
    "Volume",
    "Volumes",
]
