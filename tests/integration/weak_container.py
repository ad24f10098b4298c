"""A container without any of the product's hardening, and without a way out of this host.

Its network is its own: one interface that leads nowhere, a default route over it, and a listener on
its loopback stand for a host's network. Nothing of the host is shared but /dev and /sys.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

IMAGE = "orch/debian:1"
CANARY_PORT = 8377
CAPABILITIES = [
    *("DAC_READ_SEARCH", "IPC_LOCK", "LINUX_IMMUTABLE", "MAC_ADMIN", "NET_ADMIN", "SYSLOG"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO"),
    *("SYS_TIME", "SYS_TTY_CONFIG"),
]
PREPARE = """\
mkdir -p /assets/models/start /workspace /opt/harness /data/final/x /attempts/x /weak
echo x > /assets/models/start/weights.txt; echo 'exit 0' > /opt/harness/submit.sh
cat > /weak/patch <<'END'
#!/bin/sh
# A patch that goes wherever it is told to.
for word; do last=$word; done
case $PWD in */w) touch ../esc;; *) touch /tmp/abs-esc;; esac
END
chmod +x /weak/patch
for i in $(seq 50); do sleep 600 & done
python3 - <<'END' &
import socket, time
a = socket.socket(socket.AF_UNIX); a.bind("\\0weak"); a.listen()
b = socket.socket(); b.bind(("127.0.0.1", 8377)); b.listen()
c = socket.socket(socket.AF_UNIX); c.bind("/var/run/docker.sock"); c.listen()
open("/weak/ready", "w").close()
time.sleep(600)
END
exec 9< /etc/passwd
while [ ! -e /weak/stop ]; do sleep 0.2; done
"""
NETWORK = (
    "ip link set lo up",
    "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0",
    "ip tuntap add weak0 mode tun",
    "ip addr add 198.51.100.1/24 dev weak0",
    "ip link set weak0 up",
    "ip -6 addr add 2001:db8::1/64 dev weak0",
    "ip route add default dev weak0",
    "ip -6 route add default dev weak0",
)


@contextmanager
def weak(*, argv: tuple[str, ...] = ("bash", "-c", PREPARE), init: bool = False) -> Iterator[Any]:
    """Start one and wait until it is as weak as it should be."""
    client = docker.from_env()
    body = client.api.create_host_config(
        network_mode="none",
        cap_add=CAPABILITIES,
        security_opt=["seccomp=unconfined"],
        binds=["/dev:/dev", "/sys:/sys"],
        device_cgroup_rules=["a *:* rwm"],
        ulimits=[docker.types.Ulimit(name="core", soft=-1, hard=-1)],
        shm_size="1g",
        init=init,
    )
    body |= {"MaskedPaths": [], "ReadonlyPaths": []}
    made = client.api.create_container(
        IMAGE,
        list(argv),
        user="0:0",
        host_config=body,
        environment={"SECRET_TOKEN": "weak", "API_KEY": "weak"},
    )
    container = client.containers.get(made["Id"])
    try:
        container.start()
        container.reload()
        yield container
    finally:
        if _runs(container):
            container.exec_run(["chattr", "-i", "/out/imm"])  # or its layer could not be removed
        container.remove(force=True)
        client.close()


def open_network(container: Any) -> None:
    """Give it a network that leads nowhere."""
    pid = str(container.attrs["State"]["Pid"])
    for command in NETWORK:
        subprocess.run(["nsenter", "-t", pid, "-n", *command.split()], check=True)


def _runs(container: Any) -> bool:
    container.reload()
    return bool(container.status == "running")


def log_size(container_id: str) -> int:
    """Bytes that the engine keeps of a container's output."""
    client = docker.from_env()
    path = Path(client.api.inspect_container(container_id)["LogPath"])
    client.close()
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
