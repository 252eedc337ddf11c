"""CUDA source becomes a cubin: NVRTC through ``cuda.bindings``, which needs neither a GPU nor a driver.

The intrinsics headers travel in memory and no CUDA header is included, which keeps a compile at 0.1-0.4 s. Registers,
spills, stack and static shared memory are read from the assembler's verbose log, before any GPU time is spent.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gemmtune.codegen.kernel import CompiledKernel, KernelResources, KernelSource
from gemmtune.codegen.render import HEADER_NAME, further_headers, intrinsics
from gemmtune.space.errors import CompileError, ToolchainError

if TYPE_CHECKING:
    from gemmtune.codegen.cache import KernelCache

OPTIONS = ("-std=c++17", "-default-device", "--ptxas-options=-v", "--diag-suppress=177")
"""Options of every compile, besides the architecture (177: a constant that one kernel has no use for)."""
_WANT = "catastrophic error: out of memory"
"""How NVRTC's front end says that it was refused memory; its back end aborts."""
LOG_HEAD = 1500
"""Characters of the compiler's log that an error message carries."""

_CURE = (
    'install gemmtune with an extra that brings it: pip install "gemmtune[cuda13]" '
    '(or "gemmtune[cuda12]", which also compiles for sm_70)'
)
_ARCH = re.compile(r"^sm_(\d+)[af]?$")
_RESOURCES = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "stores": re.compile(r"(\d+) bytes spill stores"),
    "loads": re.compile(r"(\d+) bytes spill loads"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


class CompileMemoryError(CompileError):
    """The compiler needed more memory than it may have."""


@lru_cache(maxsize=1)
def _nvrtc() -> Any:
    """The bindings' module, once NVRTC itself has answered."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ToolchainError(
            f"NVRTC cannot be used, since the package cuda-bindings is missing ({error}): {_CURE}."
        ) from None
    try:
        status, *_ = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        message = " ".join(str(error).split()).partition(": No such file")[0]  # which the finder repeats for each place
        raise ToolchainError(f"NVRTC's library cannot be loaded ({message[:200]}): {_CURE}.") from None
    if int(status) != 0:
        raise ToolchainError(f"NVRTC does not answer (nvrtcVersion: {status}): {_CURE}.")
    return nvrtc


def nvrtc_version() -> str:
    """NVRTC's version, e.g. ``"13.0"``.

    Raises:
        ToolchainError: there is no NVRTC; the message names the cure.
    """
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def supported_archs() -> list[int]:
    """Compute capabilities this NVRTC compiles for, as integers: 75, 80, ..., 120.

    Raises:
        ToolchainError: there is no NVRTC; the message names the cure.
    """
    nvrtc = _nvrtc()
    status, archs = nvrtc.nvrtcGetSupportedArchs()
    _expect(nvrtc, status, "nvrtcGetSupportedArchs")
    return sorted(int(a) for a in archs)


def compile_options(arch: str, version: str | None = None) -> tuple[str, ...]:
    """The options for ``arch`` (``sm_90a``) of NVRTC ``version``, by default of the one that is installed."""
    # Since 12.9 NVRTC keeps a cache of its own, and an answer from it comes without the log that resources are read
    # from; our cache keeps both.
    own_cache = ("--no-cache",) if tuple(map(int, (version or nvrtc_version()).split("."))) >= (12, 9) else ()
    return (f"--gpu-architecture={arch}", *OPTIONS, *own_cache)


def compile_kernel(source: KernelSource, arch: str, cache: KernelCache | None = None) -> CompiledKernel:
    """Compile ``source`` for ``arch``; with a ``cache``, take it from there where it is.

    Args:
        source: a rendered configuration.
        arch: ``sm_XY`` or ``sm_XYa``, see :attr:`gemmtune.space.gpu.Gpu.arch`.
        cache: where to look first and to publish.

    Raises:
        CompileError: the compiler refused the source; the message carries the head of its log.
        CompileMemoryError: it ran out of memory.
        ToolchainError: there is no NVRTC, or it does not know ``arch``; the message names the cure.
    """
    started = time.perf_counter()
    version = nvrtc_version()
    options = compile_options(arch)
    if cache is not None:
        found = cache.get(source, options, version)
        if found is not None:
            return CompiledKernel(
                source=source,
                arch=arch,
                cubin=found.cubin,
                resources=parse_resources(found.log, source.entry),
                nvrtc=version,
                log=found.log,
                seconds=time.perf_counter() - started,
                cached=True,
            )
    _check_arch(arch, version)
    cubin, log = _compile(source, options, arch)
    if cache is not None:
        cache.put(source, options, version, cubin, log)
    return CompiledKernel(
        source=source,
        arch=arch,
        cubin=cubin,
        resources=parse_resources(log, source.entry),
        nvrtc=version,
        log=log,
        seconds=time.perf_counter() - started,
        cached=False,
    )


def parse_resources(log: str, entry: str) -> KernelResources | None:
    """What ``--ptxas-options=-v`` said of ``entry``; None where the log does not speak of it.

    The log names the function ("Compiling entry function 'x'"), then its stack and spills, then "Used N registers" and,
    where there is static shared memory, "N bytes smem".
    """
    start = log.find(f"entry function '{entry}'")
    if start < 0:
        return None
    end = log.find("Compiling entry function", start)
    part = log[start : end if end >= 0 else len(log)]
    values: dict[str, int] = {}
    for name, pattern in _RESOURCES.items():
        match = pattern.search(part)
        values[name] = int(match.group(1)) if match else 0
    if not values["registers"]:
        return None
    return KernelResources(
        registers=values["registers"],
        spill_bytes=values["stores"] + values["loads"],
        stack_bytes=values["stack_bytes"],
        shared_bytes=values["shared_bytes"],
    )


def _check_arch(arch: str, version: str) -> None:
    match = _ARCH.match(arch)
    known = supported_archs()
    if match and int(match.group(1)) in known:
        return
    names = ", ".join(f"sm_{a}" for a in known)
    cure = "name one of these"
    if match and int(match.group(1)) < known[0]:
        cure = 'CUDA 12 is the last that compiles for older GPUs: pip install "gemmtune[cuda12]" in another environment'
    elif match and int(match.group(1)) > known[-1]:
        cure = 'a newer NVRTC may: pip install --upgrade "gemmtune[cuda13]"'
    raise ToolchainError(f"NVRTC {version} cannot compile for {arch}, only for {names}; {cure}.")


def _compile(source: KernelSource, options: tuple[str, ...], arch: str) -> tuple[bytes, str]:
    nvrtc = _nvrtc()
    headers = {HEADER_NAME: intrinsics(), **further_headers(source.text)}
    status, program = nvrtc.nvrtcCreateProgram(
        source.text.encode(),
        f"{source.entry}.cu".encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    _expect(nvrtc, status, "nvrtcCreateProgram")
    try:
        (compiled,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _log(nvrtc, program)
        if int(compiled) != 0:
            head = log[:LOG_HEAD].strip() or _text(nvrtc, compiled)
            if _WANT in log or int(compiled) == int(nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY):
                raise CompileMemoryError(f"NVRTC ran out of memory over {source.configuration} for {arch}.")
            raise CompileError(f"NVRTC refused {source.configuration} for {arch}: {head}")
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        _expect(nvrtc, status, "nvrtcGetCUBINSize")
        cubin = bytearray(size)
        (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        _expect(nvrtc, status, "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin), log


def _log(nvrtc: Any, program: Any) -> str:
    status, size = nvrtc.nvrtcGetProgramLogSize(program)
    _expect(nvrtc, status, "nvrtcGetProgramLogSize")
    raw = bytearray(size)
    (status,) = nvrtc.nvrtcGetProgramLog(program, raw)
    _expect(nvrtc, status, "nvrtcGetProgramLog")
    return bytes(raw).rstrip(b"\0").decode(errors="replace")


def _text(nvrtc: Any, status: Any) -> str:
    _, text = nvrtc.nvrtcGetErrorString(status)
    return str(text.decode() if isinstance(text, bytes) else text)


def _expect(nvrtc: Any, status: Any, call: str) -> None:
    if int(status) != 0:
        raise CompileError(f"{call} failed: {_text(nvrtc, status)}.")
