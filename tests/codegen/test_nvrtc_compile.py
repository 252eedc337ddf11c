"""Compiling: every family for every architecture the NVRTC at hand can do, the resources in its log, its refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.nvrtc import compile_kernel, compile_options, nvrtc_version, parse_resources, supported_archs
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, ToolchainError
from gemmtune.space.families import FAMILIES
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE
from gemmtune.space.space import Space

GPUS = ("v100", "t4", "a100", "rtx4090", "h200", "b200", "rtx5090")


@pytest.fixture(scope="module")
def source() -> KernelSource:
    return render(Gemm(64, 64, 64), Configuration.of("naive", {}))


def middle(space: Space) -> Configuration:
    return space[len(space) // 2]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
@pytest.mark.parametrize("gpu", [TABLE[name] for name in GPUS], ids=GPUS)
def test_one_kernel_of_each_family_compiles_for_each_architecture(gpu, family) -> None:
    capability = gpu.capability[0] * 10 + gpu.capability[1]
    if capability not in supported_archs():
        pytest.skip(f"NVRTC {nvrtc_version()} does not compile for sm_{capability}")
    problem = Gemm(256, 256, 256, "fp16", epilogue="bias")
    reason = family.unsupported(problem, gpu)
    if reason:
        pytest.skip(reason)
    configuration = (
        middle(Space(problem, gpu, [family])) if family.parameters(problem, gpu) else Configuration.of(family.name, {})
    )
    kernel = compile_kernel(render(problem, configuration), gpu.arch)
    assert kernel.cubin.startswith(b"\x7fELF")
    assert kernel.resources is not None
    assert 16 <= kernel.resources.registers <= 255
    assert kernel.source.entry.encode() in kernel.cubin


def test_spills_stack_and_shared_memory_are_read(source: KernelSource) -> None:
    text = (
        f'extern "C" __global__ void __launch_bounds__(1024, 2) {source.entry}(float* p, int n) {{\n'
        "  __shared__ float shared[100];\n  float x[64];\n"
        "  shared[threadIdx.x % 100] = p[threadIdx.x];\n  __syncthreads();\n"
        "#pragma unroll\n  for (int i = 0; i < 64; i++) x[i] = p[i * n] + shared[i];\n"
        "  __syncthreads();\n"
        "#pragma unroll\n  for (int i = 0; i < 64; i++) p[i * n] = x[i] * x[63 - i];\n}\n"
    )
    resources = compile_kernel(replace(source, text=text), "sm_90").resources
    assert resources is not None
    assert resources.registers == 32
    assert resources.shared_bytes == 400
    assert resources.spill_bytes > 0
    assert resources.stack_bytes > 0


def test_the_log_of_another_function_says_nothing() -> None:
    assert parse_resources("ptxas info    : Compiling entry function 'f' for 'sm_90'", "g") is None
    assert parse_resources("ptxas info    : Compiling entry function 'f' for 'sm_90'", "f") is None
    assert parse_resources("", "f") is None


def test_an_error_shows_configuration_architecture_and_log(source: KernelSource) -> None:
    with pytest.raises(CompileError, match=r"NVRTC refused naive for sm_90: .*expected an expression"):
        compile_kernel(replace(source, text=source.text + "\nint x = ;\n"), "sm_90")


def test_the_log_in_an_error_is_cut_short(source: KernelSource) -> None:
    with pytest.raises(CompileError) as caught:
        compile_kernel(replace(source, text=source.text + "\nint x = ;\n" * 1000), "sm_90")
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("arch", "cure"), [("sm_10", "cuda12"), ("sm_999", "--upgrade"), ("ninety", "name one of these"), ("", "name one")]
)
def test_an_architecture_out_of_reach_names_the_cure(source: KernelSource, arch: str, cure: str) -> None:
    with pytest.raises(ToolchainError, match=f"NVRTC {re.escape(nvrtc_version())} cannot compile for {arch}.*{cure}"):
        compile_kernel(source, arch)


def test_cubins_are_deterministic(source: KernelSource) -> None:
    assert compile_kernel(source, "sm_90").cubin == compile_kernel(source, "sm_90").cubin


def test_the_second_compile_comes_from_the_cache(source: KernelSource, tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    first, second = (compile_kernel(source, "sm_90", cache) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert (first.cubin, first.resources, first.log) == (second.cubin, second.resources, second.log)
    assert not compile_kernel(source, "sm_80", cache).cached
    assert not compile_kernel(replace(source, text=source.text + "\n"), "sm_90", cache).cached


def test_options_name_the_architecture() -> None:
    assert "--gpu-architecture=sm_90a" in compile_options("sm_90a")
