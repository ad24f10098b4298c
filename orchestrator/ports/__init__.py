"""What the inner rooms need from the outside, as small protocols.

Adapters implement these; ``wiring`` picks them; ``adapters.in_memory`` ships a fake of each, and
one contract suite runs against fake and real alike.
"""

from orchestrator.ports.agents import (
    Agent,
    AgentPackages,
    AgentSession,
    ModelRefused,
    SessionModel,
)
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
    "AgentPackages",
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
    "ModelRefused",
    "OldImages",
    "PatchRefused",
    "ProcessTable",
    "SessionModel",
    "SizeLimit",
    "StoredFile",
    "TreeStore",
    "Trees",
    "Views",
    "Volume",
    "Volumes",
]
