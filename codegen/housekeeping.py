"""What lies in the cache, and making room: kernels of NVRTC, and the libraries that the emulator builds.

Safe while others use the cache: entries appear by atomic rename and are read whole, so that one which is pruned is a
miss and made again. What is being written lies aside under another name and is left alone.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmtune.codegen.cache import unpack

Kind = Literal["kernel", "emulated kernel", "emulator", "damaged"]

ABANDONED = 24 * 3600.0
"""Seconds after which what was being written is taken for what a killed process left."""
_ENTRY = re.compile(r"entry function '(\w+)' for '(\w+)'")


@dataclass(frozen=True)
class Entry:
    """One thing in the cache.

    Attributes:
        kind: a kernel that NVRTC made, one built for the emulator, the emulator itself, or what nobody can read.
        name: the kernel's entry and architecture; the file's name where it does not say.
        paths: its files; the first is removed first.
        bytes: of all of them.
        used: when it was last used or, where that is not kept, made; seconds since the epoch.
        hits: how often it was found here; None where that is not counted.
    """

    kind: Kind
    name: str
    paths: tuple[Path, ...]
    bytes: int
    used: float
    hits: int | None


def entries(root: Path) -> list[Entry]:
    """Everything in the cache at ``root``, the longest unused first."""
    found = [*_kernels(root), *_emulated(root)]
    return sorted(found, key=lambda e: (e.used, e.paths))


def prune(
    root: Path, max_bytes: int | None = None, older_than: float | None = None, now: float | None = None
) -> list[Entry]:
    """Remove what has been unused for ``older_than`` seconds, then the longest unused until ``max_bytes`` are left.

    What cannot be read, and what a killed process left half-written, goes first.

    Args:
        root: the cache.
        max_bytes: bytes it may have; None for any number.
        older_than: seconds; None for any age.
        now: seconds since the epoch; by default the clock's.

    Returns:
        What was removed, in that order.
    """
    moment = time.time() if now is None else now
    there = entries(root)
    left = sum(e.bytes for e in there)
    removed = []
    for entry in sorted(there, key=lambda e: e.kind != "damaged"):  # stable: the longest unused first
        old = older_than is not None and moment - entry.used > older_than
        large = max_bytes is not None and left > max_bytes
        if (old or large or entry.kind == "damaged") and _remove(entry):
            left -= entry.bytes
            removed.append(entry)
    for path in _aside(root):
        with contextlib.suppress(OSError):
            if moment - path.stat().st_mtime > ABANDONED:
                path.unlink()
                if path.parent.name.startswith("."):
                    path.parent.rmdir()  # refuses while anything is left in it
    return removed


def _kernels(root: Path) -> Iterator[Entry]:
    for path in root.glob("kernels/??/*"):
        if path.name.startswith("."):
            continue
        try:
            state, data = path.stat(), path.read_bytes()
        except OSError:  # pruned by another process
            continue
        held = unpack(data)
        match = _ENTRY.search(held.log) if held is not None else None
        yield Entry(
            kind="kernel" if held is not None else "damaged",
            name=f"{match.group(1)} {match.group(2)}" if match else path.name[:16],
            paths=(path,),
            bytes=len(data),
            used=state.st_mtime,
            hits=held.uses if held is not None else None,
        )


def _emulated(root: Path) -> Iterator[Entry]:
    for home in root.glob("emulator/*"):
        built = [e for e in map(_library, home.glob("kernels/*.so")) if e is not None]
        yield from built
        core = _library(home / "core.so")
        if core is not None:  # in use for as long as kernels are built for it
            used = max([core.used, *(e.used for e in built)])
            yield Entry("emulator", f"core {home.name[:16]}", core.paths, core.bytes, used, None)


def _library(path: Path) -> Entry | None:
    paths = (path, path.with_name(f"{path.name}.sha256"))  # without the library its digest is no use to anyone
    try:
        state = path.stat()
    except OSError:
        return None
    size = state.st_size
    with contextlib.suppress(OSError):
        size += paths[1].stat().st_size
    return Entry("emulated kernel", path.stem[:16], paths, size, state.st_mtime, None)


def _aside(root: Path) -> Iterator[Path]:
    """Files on their way into the cache."""
    yield from root.glob("kernels/??/.new-*")
    yield from root.glob("emulator/**/.build-*/*")


def _remove(entry: Entry) -> bool:
    """Remove it unless it was used or replaced since it was looked at."""
    first = entry.paths[0]
    try:
        if entry.kind != "emulator" and first.stat().st_mtime != entry.used:
            return False
        first.unlink()
    except OSError:
        return False
    for path in entry.paths[1:]:
        with contextlib.suppress(OSError):
            path.unlink()
    return True
