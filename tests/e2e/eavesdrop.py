"""Inside a container's network: make every address this host's own, and log who is looked for.

A line for each name that is asked for, and for each address beyond the loopback that somebody
tries to reach. Nothing answers; nothing leaves the container's network, which is the loopback.
"""

import socket
import struct
import subprocess
import sys
from pathlib import Path

_ALL = 3
_IPV4 = 0x0800
_TCP, _UDP = 6, 17
_DNS = 53


def main() -> None:
    log = Path(sys.argv[1]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - until killed
    subprocess.run(["ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo"], check=True)
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL)) as ear:
        ear.bind(("lo", _ALL))
        print("ready", flush=True)
        while True:
            data, place = ear.recvfrom(65536)
            if place[1] == _IPV4 and place[2] == socket.PACKET_OUTGOING and (said := told(data)):
                log.write(said + "\n")


def told(packet: bytes) -> str:
    """Say what a packet looks for; empty where it is the loopback's own business."""
    head, protocol = 4 * (packet[0] & 15), packet[9]
    target, body = socket.inet_ntoa(packet[16:20]), packet[head:]
    if protocol not in {_TCP, _UDP}:
        return ""
    port = struct.unpack("!H", body[2:4])[0]
    if protocol == _UDP and port == _DNS:
        return f"name {name(body[8:])}"
    opens = protocol == _UDP or body[13] & 0x12 == 0x02
    return f"address {target}:{port}" if opens and not target.startswith("127.") else ""


def name(query: bytes) -> str:
    parts, at = [], 12
    while length := query[at]:
        parts.append(query[at + 1 : at + 1 + length].decode("latin1"))
        at += 1 + length
    return ".".join(parts)


if __name__ == "__main__":
    main()
