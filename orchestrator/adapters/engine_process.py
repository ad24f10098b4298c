"""Which process answers on a local engine socket: what changes when the engine restarts."""

import socket
import struct
from pathlib import Path

from orchestrator.errors import EngineUnavailableError

START_REMEDY = (
    "start the engine (`systemctl start docker`, or `dockerd` as root), or point DOCKER_HOST at one"
)
_ACCESS_REMEDY = (
    "join the group that owns the socket (`sudo usermod -aG docker $USER`, then log in again), "
    "or point DOCKER_HOST at an engine of your own"
)
_PEER = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def incarnation_of(address: str) -> str:
    """Return ``<boot id>:<pid>:<start time>`` of the engine behind ``address``.

    The start time is field 22 of proc(5)'s ``stat``, in clock ticks since boot, so that a reused
    pid does not pass for the same process. "" where it cannot be known: a remote engine, one in
    another pid namespace, or a socket held by an init system without a pid file beside it.

    Raises:
        EngineUnavailableError: nothing listens on that socket.
    """
    scheme, _, path = address.partition("://")
    if scheme != "unix":
        return ""
    pid = _listener(path, address)
    if pid == 1:  # socket activation: init listens, the engine writes its own pid beside the socket
        pid = _read_pid(Path(path).with_suffix(".pid"))
    started = _start_time(pid)
    if not started:
        return ""
    return f"{_BOOT_ID.read_text(encoding='ascii').strip()}:{pid}:{started}"


def _listener(path: str, address: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            refused = isinstance(error, PermissionError)
            raise EngineUnavailableError(
                f"no container engine answers at {address}: {error.strerror}",
                remedy=_ACCESS_REMEDY if refused else START_REMEDY,
            ) from error
        peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, _, _ = _PEER.unpack(peer)
    return int(pid)


def _read_pid(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _start_time(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # the name before it may hold spaces
