"""A compiled kernel: source, cubin, recipe and what the compiler said of its resources. Plain picklable data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gemmtune.space.configuration import Configuration
from gemmtune.space.recipe import LaunchRecipe


@dataclass(frozen=True)
class KernelResources:
    """From the compiler's log: registers a thread, spilled bytes (stores + loads), stack and static shared bytes."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class KernelSource:
    """A rendered configuration, not yet compiled. ``template_hash`` covers template, includes and intrinsics."""

    configuration: Configuration
    entry: str
    text: str
    template_hash: str
    recipe: LaunchRecipe


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel ready to run. ``cubin`` may be empty on devices that run the source (the emulator without NVRTC)."""

    source: KernelSource
    arch: str
    cubin: bytes
    resources: KernelResources | None
    nvrtc: str
    log: str
    seconds: float
    cached: bool

    @property
    def cubin_sha256(self) -> str:
        """Hash of the cubin, its name in caches and packs."""
        return hashlib.sha256(self.cubin).hexdigest()

    @property
    def configuration(self) -> Configuration:
        """The configuration it was rendered from."""
        return self.source.configuration

    @property
    def recipe(self) -> LaunchRecipe:
        """How to launch it."""
        return self.source.recipe
