"""Building for the emulator: the core once as a shared library, then one lean library a kernel.

Both lie in a content-addressed cache and appear by atomic rename, so that any number of processes may build at once. A
library whose bytes do not match the digest beside it (truncated, altered) is built again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path

import platformdirs

from gemmtune.device.emulator.toolchain import CompilerFailure, Toolchain, find_toolchain
from gemmtune.space.errors import CompileError, ToolchainError

NATIVE = Path(__file__).resolve().parent / "native"
HEADERS = ("hw", "hopper", "stream")
"""The intrinsics layers: kernel sources include ``gemmtune/<name>.cuh``, whose twin is ``native/<name>.h``."""

_BOUNDS = re.compile(r"__launch_bounds__\(([^()]*)\)")

CORE_TIMEOUT = 600.0
"""Seconds; the first run of the ziglang wheel builds its C++ library, about 40 s on two cores."""
KERNEL_TIMEOUT = 120.0


def cache_root() -> Path:
    """``$GEMMTUNE_CACHE`` or the user's cache directory, then ``emulator``."""
    root = os.environ.get("GEMMTUNE_CACHE", "").strip()
    return Path(root or platformdirs.user_cache_dir("gemmtune")) / "emulator"


@lru_cache(maxsize=1)
def _native_sources() -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(NATIVE.iterdir()) if p.suffix in (".h", ".cpp")}


def _digest(*parts: object) -> str:
    h = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:32]


def sources_digest() -> str:
    """Hash of the emulator's own sources."""
    return _digest(*(part for name, data in _native_sources().items() for part in (name, data)))


@lru_cache(maxsize=8)
def core_key(toolchain: Toolchain) -> str:
    """What the core and the headers depend on: sources, compiler and its version, flags."""
    return _digest(toolchain.command, toolchain.version, toolchain.core_flags(), sources_digest())


def _publish(
    library: Path, toolchain: Toolchain, arguments: list[str], timeout: float, text: str | None = None
) -> Path:
    """Build ``library`` unless it is there and whole; ``text`` is one more source to compile."""
    mark = library.with_name(f"{library.name}.sha256")
    with contextlib.suppress(OSError):
        if hashlib.sha256(library.read_bytes()).hexdigest() == mark.read_text(encoding="ascii").strip():
            return library
    try:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent) as scratch:
            made, made_mark, source = (Path(scratch) / name for name in ("made.so", "mark", "source.cpp"))
            if text is not None:
                source.write_text(text, encoding="utf-8")
                arguments = [*arguments, str(source)]
            toolchain.compile([*arguments, "-o", str(made)], timeout)
            made_mark.write_text(hashlib.sha256(made.read_bytes()).hexdigest(), encoding="ascii")
            made.replace(library)
            made_mark.replace(mark)
    except OSError as error:
        raise ToolchainError(
            f"The emulator's cache {library.parent} cannot be written ({error}): free space, or set GEMMTUNE_CACHE."
        ) from None
    return library


def _directory(key: str) -> Path:
    directory = cache_root() / key
    try:
        (directory / "kernels").mkdir(parents=True, exist_ok=True)
        (directory / "include" / "gemmtune").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolchainError(
            f"The emulator's cache {directory} cannot be created ({error}): set GEMMTUNE_CACHE to a writable directory."
        ) from None
    return directory


def build_core(toolchain: Toolchain | None = None) -> Path:
    """The path of the core library, built if need be (about 5 s once).

    Raises:
        ToolchainError: no compiler, a compiler that fails, or a cache that cannot be written.
    """
    toolchain = toolchain or find_toolchain()
    directory = _directory(core_key(toolchain))
    sources = [str(NATIVE / name) for name in _native_sources() if name.endswith(".cpp")]
    return _publish(directory / "core.so", toolchain, [*toolchain.core_flags(), "-shared", *sources], CORE_TIMEOUT)


def build_kernel(text: str, entry: str, toolchain: Toolchain | None = None, *, capability: int = 90) -> Path:
    """The path of the library of one kernel source; its undefined symbols are the core's (about 0.3 s).

    Args:
        text: CUDA C++ over :mod:`hw::`, with ``#include "gemmtune/hw.cuh"``.
        entry: the name of its ``extern "C" __global__`` function.
        toolchain: by default :func:`find_toolchain`.
        capability: of the GPU that the emulator stands for, e.g. 75; kernels see it as ``__CUDA_ARCH__`` (750).

    Raises:
        CompileError: the compiler refuses the source; the message holds the head of what it printed.
        ToolchainError: as :func:`build_core`.
    """
    toolchain = toolchain or find_toolchain()
    build_core(toolchain)  # so that what fails below is the source's fault
    directory = _directory(core_key(toolchain))
    flags = (*toolchain.kernel_flags(), f"-D__CUDA_ARCH__={capability * 10}")
    library = directory / "kernels" / f"{_digest(text, entry, flags)}.so"
    arguments = [*flags, f"-I{_include(directory)}", "-shared", "-nostdlib"]
    source = f'#line 1 "{entry}.cu"\n{text}\nEMU_ENTRY({entry}, {_resident_blocks(text)})\n'
    try:
        return _publish(library, toolchain, arguments, KERNEL_TIMEOUT, source)
    except CompilerFailure as failure:
        if os.strerror(errno.ENOSPC) in failure.log:  # no fault of the kernel's, which must not be recorded as one
            raise ToolchainError(
                f"The disk of {library.parent} or of {tempfile.gettempdir()} is full: free some space, or set "
                f"GEMMTUNE_CACHE and TMPDIR to other places."
            ) from None
        raise CompileError(f"Kernel {entry} does not compile for the emulator: {failure.log}") from None


def _resident_blocks(text: str) -> str:
    """The blocks a multiprocessor that the kernel's launch bounds ask for, as a constant expression of its source."""
    bounds = _BOUNDS.search(text)
    parts = bounds.group(1).split(",") if bounds else []
    return parts[1].strip() if len(parts) > 1 else "1"


def _include(directory: Path) -> Path:
    """A folder in which the headers of the intrinsics are the emulator's twins of them."""
    for name in HEADERS:
        header = directory / "include" / "gemmtune" / f"{name}.cuh"
        wanted = f'#include "{NATIVE / name}.h"\n'
        try:
            if not header.exists() or header.read_text(encoding="utf-8") != wanted:
                temporary = header.with_name(f".{name}.{os.getpid()}")
                temporary.write_text(wanted, encoding="utf-8")
                temporary.replace(header)
        except OSError as error:
            raise ToolchainError(
                f"The emulator's cache {directory} cannot be written ({error}): set GEMMTUNE_CACHE."
            ) from None
    return directory / "include"


def prune_kernels(keep: int = 1000) -> None:
    """Delete all but the ``keep`` newest kernel libraries of every core: each is some 50 KB, a study makes hundreds."""
    for directory in cache_root().glob("*/kernels"):
        with contextlib.suppress(OSError):  # another process may be pruning too
            by_age = sorted(directory.glob("*.so"), key=lambda p: p.stat().st_mtime, reverse=True)
            for library in by_age[keep:]:
                library.unlink(missing_ok=True)
                library.with_name(f"{library.name}.sha256").unlink(missing_ok=True)
