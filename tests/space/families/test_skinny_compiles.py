"""skinny kernels through NVRTC: they assemble for every generation, stay in registers, keep loads in flight."""

from __future__ import annotations

import re

import pytest

from gemmtune.codegen.nvrtc import compile_kernel, supported_archs
from gemmtune.codegen.render import render
from gemmtune.codegen.sass import disassemble
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.families.skinny import Skinny
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

SKINNY = Skinny()
try:
    ARCHS = supported_archs()
except ToolchainError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        ("t4", "fp16", "nt"),
        ("t4", "bf16", "tn"),
        ("a100", "bf16", "nn"),
        ("h200", "fp16", "tt"),
        ("h200", "fp32", "nt"),
        ("b200", "bf16", "nn"),
        ("rtx5090", "bf16", "nt"),
    ],
)
def test_it_assembles_for_every_generation(name: str, dtype: str, layout: str) -> None:
    if gpu(name).capability[0] * 10 + gpu(name).capability[1] not in ARCHS:
        pytest.skip(f"this NVRTC does not compile for {gpu(name).arch}")
    problem = Gemm(4, 4096, 4096, dtype=dtype, layout=layout)
    points = SKINNY.starting_points(problem, gpu(name))
    for configuration in (points[0], points[-1]):
        compiled = compile_kernel(render(problem, configuration, SKINNY), gpu(name).arch)
        assert compiled.resources is not None
        assert compiled.resources.spill_bytes == 0
        assert "warning" not in compiled.log


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 64])
def test_starting_points_stay_in_the_registers_they_were_reckoned_with(m: int, layout: str) -> None:
    problem, h200 = Gemm(m, 4096, 7168, layout=layout), gpu("h200")
    for configuration in SKINNY.starting_points(problem, h200)[:4]:
        resources = compile_kernel(render(problem, configuration, SKINNY), h200.arch).resources
        assert resources is not None
        assert (resources.spill_bytes, resources.stack_bytes, resources.shared_bytes) == (0, 0, 0)
        guess = SKINNY.bind(problem, configuration, h200)["registers"]
        assert guess - 45 <= resources.registers <= guess + 20


@pytest.mark.parametrize("hint", ["plain", "stream", "far", "first"])
@pytest.mark.parametrize(
    ("m", "knobs", "loads"),
    [
        (1, "core=fma bm=1 tn=2 lanes_k=32 vec=8 depth=6 warps_n=1 warps_k=2 splits=1", 12),
        (16, "core=mma bm=16 tn=2 lanes_k=4 vec=8 depth=4 warps_n=4 warps_k=2 splits=1", 16),
    ],
)
def test_the_ring_is_refilled_step_by_step_in_whole_vectors(m: int, knobs: str, loads: int, hint: str) -> None:
    """All places are filled before the loop, and in it each between products, never many side by side."""
    problem = Gemm(m, 4096, 4096)
    configuration = Configuration.parse(f"skinny {knobs} activations=shared hint={hint} blocks=1")
    assert SKINNY.why_invalid(problem, configuration, gpu("h200")) == []
    compiled = compile_kernel(render(problem, configuration, SKINNY), "sm_90a")
    try:
        text = disassemble(compiled.cubin).text
    except ToolchainError as error:
        pytest.skip(str(error))
    wanted = {
        "plain": r"LDG\.E\.128\.CONSTANT",
        "stream": r"LDG\.E\.NA\.LTC128B\.128\.CONSTANT",
        "far": r"LDG\.E\.NA\.LTC256B\.128\.CONSTANT",
        "first": r"LDG\.E\.NA\.LTC128B\.128\.CONSTANT",
    }[hint]
    product = "FFMA" if m == 1 else "HMMA"
    order = re.findall(rf"{wanted}|LDG\.|{product}", text)
    assert sum(bool(re.fullmatch(wanted, word)) for word in order) == 2 * loads
    assert "LDG." not in order
    groups = [len(g.split()) for g in re.sub(rf"({product} ?)+", "|", " ".join(order)).split("|") if g.strip()]
    step = loads // configuration.integer("depth")
    assert loads <= groups[0] <= loads + step
    assert max(groups[1:]) <= step
