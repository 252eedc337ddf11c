"""Kernels of a history as they were measured: found again by the hash of their cubin, or compiled once more.

And how a pack describes a kernel, and what runs again by that description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelResources, KernelSource
from gemmtune.pack.format import PackData, bindings, sha256
from gemmtune.pack.schema import Kernel
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, PackError, ToolchainError
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

if TYPE_CHECKING:
    from gemmtune.db.records import TrialRecord


def rebuild(record: TrialRecord, cache: KernelCache, exported: bytes | None = None) -> CompiledKernel:
    """The kernel of a recorded trial, with its cubin: from the cache, an earlier export, or its stored source.

    Raises:
        CompileError: the cubin that comes out is not the one that was measured.
        ToolchainError: it must be compiled, and there is no NVRTC for it.
        PackError: the history has no source or recipe of it.
    """
    from gemmtune.codegen.nvrtc import compile_kernel, compile_options

    if not record.source or record.recipe is None:
        raise PackError(f"the history holds neither source nor recipe of trial {record.number}: tune it again.")
    recipe = LaunchRecipe.from_json(record.recipe)
    source = KernelSource(
        Configuration.parse(record.configuration), recipe.entry, record.source, record.template_hash, recipe
    )
    resources = KernelResources(
        record.registers or 0, record.spill_bytes or 0, record.stack_bytes or 0, record.shared_bytes or 0
    )
    found = cache.get(source, compile_options(record.arch), record.nvrtc)
    for cubin, log in ((found.cubin, found.log) if found else (b"", ""), (exported or b"", "")):
        if cubin and sha256(cubin) == record.cubin_sha256:
            return CompiledKernel(source, record.arch, cubin, resources, record.nvrtc, log, 0.0, cached=True)
    compiled = compile_kernel(source, record.arch, cache)
    # An estimate speaks of the source, so any cubin of it will do; a measurement speaks of one cubin alone.
    if not record.estimated and compiled.cubin_sha256 != record.cubin_sha256:
        raise CompileError(
            f"the measured cubin is no longer in the kernel cache, and NVRTC {compiled.nvrtc} makes another from its "
            f"source (measured: {record.nvrtc}): install NVRTC {record.nvrtc}, or tune again."
        )
    return compiled


def pack_kernel(compiled: CompiledKernel, problem: Problem) -> Kernel:
    """A compiled kernel as a pack describes it.

    Raises:
        ToolchainError: it was never compiled.
    """
    if not compiled.cubin:
        raise ToolchainError("there is no cubin of it, since NVRTC was missing: install NVRTC and export again.")
    resources = compiled.resources
    return Kernel(
        sha=compiled.cubin_sha256,
        recipe=compiled.recipe,
        configuration=compiled.configuration,
        problem=problem,
        arch=compiled.arch,
        nvrtc=compiled.nvrtc,
        template_hash=compiled.source.template_hash,
        registers=resources.registers if resources else 0,
        spill_bytes=resources.spill_bytes if resources else 0,
    )


def unpacked(data: PackData, kernel: Kernel) -> CompiledKernel:
    """A kernel of the pack, ready to run: its own cubin and source."""
    source = KernelSource(
        configuration=kernel.configuration,
        entry=kernel.recipe.entry,
        text=data.sources[kernel.sha],
        template_hash=kernel.template_hash,
        recipe=kernel.recipe,
    )
    return CompiledKernel(
        source=source,
        arch=kernel.arch,
        cubin=data.cubins[kernel.sha],
        resources=KernelResources(kernel.registers, kernel.spill_bytes, 0, 0),
        nvrtc=kernel.nvrtc,
        log="",
        seconds=0.0,
        cached=True,
    )


def alignment(kernel: Kernel, problem: Problem) -> dict[str, int]:
    """What ``kernel`` needs of each tensor's address, in bytes: the smallest power of two that its recipe accepts."""
    env = bindings(problem)
    out: dict[str, int] = {}
    for tensor in problem.tensors():
        name = f"ptr_{tensor.name}"
        fits = (p for p in (1 << i for i in range(9)) if kernel.recipe.unmet({**env, name: p}) is None)
        out[tensor.name] = next(fits, 512)
    return out
