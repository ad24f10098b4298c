"""The system call filter as data: what it names, and what it must never name."""

import json
from typing import Any

import pytest

from orchestrator.config import bundled

PROFILE: dict[str, Any] = json.loads((bundled("profiles") / "seccomp.json").read_text())
ALLOWED = [rule for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
NAMES = {name for rule in ALLOWED for name in rule["names"]}
_CLOSED = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime clone3 delete_module fanotify_init
finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module io_cancel io_destroy
io_getevents io_pgetevents io_setup io_submit io_uring_enter io_uring_register io_uring_setup ioperm
iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind memfd_secret migrate_pages
modify_ldt mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at
open_tree perf_event_open pidfd_getfd pivot_root process_madvise quotactl quotactl_fd reboot
remap_file_pages request_key set_mempolicy set_mempolicy_home_node setdomainname sethostname setns
settimeofday socketcall swapoff swapon syslog umount umount2 unshare userfaultfd vhangup
"""


def test_what_is_not_named_is_refused() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {rule["action"] for rule in PROFILE["syscalls"]} == {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}


@pytest.mark.parametrize("name", _CLOSED.split())
def test_closed(name: str) -> None:
    assert name not in NAMES


def test_no_rule_depends_on_a_capability() -> None:
    assert not [rule for rule in PROFILE["syscalls"] if {"includes", "excludes"} & rule.keys()]


def test_only_the_native_calls_of_each_architecture() -> None:
    assert [a["subArchitectures"] for a in PROFILE["archMap"]] == [[], []]


@pytest.mark.parametrize("name", ["socket", "socketpair", "clone", "personality"])
def test_what_is_allowed_in_part_is_never_allowed_whole(name: str) -> None:
    rules = [rule for rule in ALLOWED if name in rule["names"]]
    assert rules
    assert all(rule.get("args") and rule["names"] == [name] for rule in rules)


def test_socket_families() -> None:
    rules = [rule["args"] for rule in ALLOWED if rule["names"] == ["socket"]]
    families = {arguments[0]["value"] for arguments in rules}
    assert families == {1, 2, 10, 16}  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
    assert all(argument["op"] == "SCMP_CMP_EQ" for rule in rules for argument in rule)


def test_every_name_stands_once() -> None:
    whole = [name for rule in ALLOWED if "args" not in rule for name in rule["names"]]
    assert len(whole) == len(set(whole))
