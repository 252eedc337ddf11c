"""mma kernels through NVRTC for every generation: they assemble, and large tiles stay in registers."""

from __future__ import annotations

import pytest

from gemmtune.codegen.nvrtc import compile_kernel, supported_archs
from gemmtune.codegen.render import render
from gemmtune.space.errors import ToolchainError
from gemmtune.space.families.mma import Mma
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu

MMA = Mma()
try:
    ARCHS = supported_archs()
except ToolchainError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        ("t4", "fp16", "nt"),
        ("t4", "fp16", "tn"),
        ("a100", "bf16", "nt"),
        ("h200", "fp16", "tt"),
        ("b200", "bf16", "nn"),
        ("rtx5090", "bf16", "nt"),
    ],
)
def test_it_assembles_for_every_generation(name: str, dtype: str, layout: str) -> None:
    problem = Gemm(1000, 1000, 1000, dtype=dtype, layout=layout)
    if gpu(name).capability[0] * 10 + gpu(name).capability[1] not in ARCHS:
        pytest.skip(f"this NVRTC does not compile for {gpu(name).arch}")
    configuration = MMA.starting_points(problem, gpu(name))[-1]
    resources = compile_kernel(render(problem, configuration, MMA), gpu(name).arch).resources
    assert resources is not None
    assert resources.spill_bytes == 0


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_tiles_stay_in_registers(dtype: str, layout: str) -> None:
    # 128 x 256 with 8 warps (or 256 x 128): one block an SM, whose threads have 255 registers.
    problem, h200 = Gemm(4096, 4096, 4096, dtype=dtype, layout=layout), gpu("h200")
    configuration = MMA.starting_points(problem, h200)[LAYOUTS.index(layout) % 3]
    resources = compile_kernel(render(problem, configuration, MMA), h200.arch).resources
    assert resources is not None
    assert (resources.spill_bytes, resources.stack_bytes, resources.shared_bytes) == (0, 0, 0)
    guess = MMA.bind(problem, configuration, h200)["registers"]
    assert guess - 12 <= resources.registers <= max(255, guess + 30)
