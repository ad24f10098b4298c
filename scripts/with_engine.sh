#!/usr/bin/env bash
# Run a command while a container engine answers: the one that does already (DOCKER_HOST counts),
# else, as root on Debian or Ubuntu, one that is installed and started here and stopped afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

answers() {
    .venv/bin/python -c 'import docker; docker.from_env(timeout=5).ping()' 2> /dev/null
}

runs() {  # NAME: does any live process carry it?
    grep --quiet --no-messages --line-regexp "$1" /proc/[0-9]*/comm
}

give_up() {
    printf '%s\n' "$@" >&2
    exit 69
}

clear_stale() {  # what a killed engine left would keep the next one from starting
    if ! runs dockerd; then
        rm -f /run/docker.pid /var/run/docker.pid
    fi
    if ! runs containerd; then
        rm -f /run/containerd/containerd.sock /run/docker/containerd/containerd.pid
    fi
}

start() {
    clear_stale
    log=$(mktemp -t orch-dockerd.XXXXXX)
    echo "starting dockerd (log: $log)"
    setsid dockerd < /dev/null > "$log" 2>&1 &
    engine=$!
    trap 'stop' EXIT
    trap 'exit 130' INT TERM
    for _ in $(seq 120); do
        if answers; then
            return
        fi
        if ! kill -0 "$engine" 2> /dev/null; then
            break
        fi
        sleep 0.5
    done
    tail -n 20 "$log" >&2
    give_up "dockerd did not come up; its last lines are above"
}

stop() {
    kill "$engine" 2> /dev/null || true
    wait "$engine" || true
    rm -f "$log"
}

if ! answers; then
    if [ -n "${DOCKER_HOST:-}" ]; then
        give_up "no container engine answers at DOCKER_HOST=$DOCKER_HOST" \
            "start it there, or unset DOCKER_HOST to use one on this machine"
    fi
    if runs dockerd; then
        give_up "dockerd runs on this machine but does not answer to you" \
            "join the group that owns /var/run/docker.sock, or restart it: sudo systemctl restart docker"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        give_up "no container engine answers" \
            "start it: sudo systemctl start docker (install it first: sudo apt-get install docker.io)" \
            "or point DOCKER_HOST at one that runs"
    fi
    command -v dockerd > /dev/null || scripts/debian_packages.sh docker.io iptables
    if [ -d /run/systemd/system ]; then
        sleep 5  # the package's own service may be coming up
    fi
    answers || start
fi

"$@"
