"""Who holds a claim, and whether that process still lives.

A process is named by host, pid and a start token, since pids are used again: boot id and start time from ``/proc`` on
Linux, the start time that ``ps`` tells elsewhere.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

LEASE = 3600.0
"""Seconds after which a claim from another host, which nobody here can ask, counts as left behind.

A trial takes seconds to minutes, its time limits included.
"""


@dataclass(frozen=True)
class Owner:
    """One process, so that no other is ever taken for it."""

    host: str
    pid: int
    token: str

    def left_behind(self, claimed: float, now: float) -> bool:
        """Whether a claim made at ``claimed`` (seconds since the epoch) has no living owner at ``now``."""
        if self.host != socket.gethostname():
            return abs(now - claimed) > LEASE  # a claim from far ahead was made by a clock that has been set back since
        return start_token(self.pid) != self.token

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@functools.lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    return Owner(socket.gethostname(), pid, start_token(pid))


def this_process() -> Owner:
    """The process that asks (also after a fork)."""
    return _owner_of(os.getpid())


def start_token(pid: int) -> str:
    """What tells this process from others that had its pid; empty where no such process lives."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return found.stdout.strip()
    except ProcessLookupError:
        return ""
    # proc(5): field 2 is the name in parentheses, which may hold spaces, 3 the state, 22 the start in ticks since boot.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"
