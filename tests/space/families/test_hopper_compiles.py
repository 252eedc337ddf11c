"""hopper kernels through NVRTC for sm_90a: no spills, no serialised wgmma, and a main loop of nothing but its work."""

from __future__ import annotations

import re

import pytest

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.nvrtc import compile_kernel, supported_archs
from gemmtune.codegen.render import render
from gemmtune.codegen.sass import disassemble
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.families import family
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu

HOPPER = family("hopper")
H200 = gpu("h200")
try:
    if 90 not in supported_archs():
        pytest.skip("this NVRTC does not compile for sm_90a", allow_module_level=True)
except ToolchainError as error:
    pytest.skip(str(error), allow_module_level=True)

BASE = Configuration.parse(
    "hopper bm=128 bn=256 bk=64 stages=4 warpgroups=2 schedule=cooperative cluster=1x1 raster=rows group=8 splits=1 "
    "stream=0 swap=0 hints=none store=tma producer=24 persistent=1 programmatic=0 blocks=1"
)


def compiled(problem: Gemm, configuration: Configuration) -> CompiledKernel:
    """Checked to stay in registers, and to keep its wgmmas asynchronous (ptxas warns with C7510 to C7519)."""
    kernel = compile_kernel(render(problem, configuration), H200.arch)
    assert kernel.resources is not None
    assert (kernel.resources.spill_bytes, kernel.resources.stack_bytes) == (0, 0)
    assert not re.search(r"C75\d\d|warning", kernel.log)
    return kernel


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_largest_tiles_stay_in_registers_in_every_layout(dtype: str, layout: str) -> None:
    compiled(Gemm(4096, 4096, 4096, dtype=dtype, layout=layout), BASE)


@pytest.mark.parametrize(
    "knobs",
    [
        {"bn": 192, "schedule": "pingpong"},
        {"bm": 64, "schedule": "pingpong", "stream": 1},
        {"bm": 256, "bn": 192, "stages": 3, "store": "shared"},
        {"bm": 192, "bn": 192, "warpgroups": 3, "store": "shared"},
        {"cluster": "2x1", "store": "direct"},
        {"cluster": "1x2", "producer": 40},
        {"bm": 64, "bn": 160, "warpgroups": 1, "blocks": 2, "stages": 3, "store": "shared"},
        {"bn": 200, "store": "direct"},
    ],
)
def test_every_kind_of_kernel_stays_in_registers(knobs: dict[str, int | str]) -> None:
    problem = Gemm(4096, 2112 if "stream" in knobs else 4096, 4096)
    configuration = Configuration.of("hopper", {**BASE, **knobs})
    assert HOPPER.why_invalid(problem, configuration, H200) == []
    compiled(problem, configuration)


@pytest.mark.parametrize(
    ("problem", "knobs"),
    [
        (Gemm(128, 7168, 4096), {"bn": 112, "stages": 6}),
        (Gemm(128, 2112, 7168, epilogue="bias"), {"bn": 72, "stages": 8, "cluster": "1x1x4"}),
        (Gemm(128, 7168, 4096, out_dtype="fp32"), {"bn": 256, "stages": 4, "cluster": "1x1x4"}),
        (Gemm(64, 7168, 4096, epilogue="alpha_beta"), {"bn": 64, "swap": 1, "stages": 4, "blocks": 2}),
        (Gemm(128, 7168, 4096), {"bm": 192, "bn": 128, "swap": 1, "warpgroups": 3, "stages": 5, "cluster": "1x1x8"}),
        (Gemm(64, 7168, 4096, layout="tn"), {"bm": 64, "bn": 112, "warpgroups": 1, "blocks": 2, "stages": 4}),
    ],
)
def test_clusters_that_share_k_stay_in_registers(problem: Gemm, knobs: dict[str, int | str]) -> None:
    base = {"group": 1, "cluster": "1x1x2", "store": "direct", "persistent": 0}
    configuration = Configuration.of("hopper", {**BASE, **base, **knobs})
    assert HOPPER.why_invalid(problem, configuration, H200) == []
    compiled(problem, configuration)


@pytest.mark.parametrize(
    "problem",
    [
        Gemm(4096, 7168, 2048),
        Gemm(128, 7168, 4096),
        Gemm(128, 2112, 7168),
        Gemm(64, 2112, 7168, dtype="fp16"),
        Gemm(16, 4096, 4096, out_dtype="fp32"),
        Gemm(4096, 4096, 4096, dtype="tf32"),
    ],
)
def test_starting_points_stay_in_registers(problem: Gemm) -> None:
    for configuration in HOPPER.starting_points(problem, H200)[::3]:
        compiled(problem, configuration)


def test_the_main_loop_is_four_wgmmas_one_wait_and_one_release() -> None:
    problem = Gemm(4096, 4096, 4096)
    kernel = compiled(problem, BASE)
    try:
        loop = disassemble(kernel.cubin, kernel.source.entry).hot
    except ToolchainError as error:
        pytest.skip(str(error))
    words = [i.opcode.partition(".")[0] for i in loop]
    assert words.count("HGMMA") == 4
    assert sum(i.opcode.startswith("SYNCS.ARRIVE") for i in loop) == 1
    assert sum(i.opcode.startswith("WARPGROUP.DEPBAR") for i in loop) == 1
    assert not {"MEMBAR", "LDL", "STL", "LDC", "ERRBAR"} & set(words)
    assert len(loop) < 50


SMALL: dict[str, int | str] = {"bm": 128, "bn": 64, "stages": 8, "warpgroups": 1, "group": 1, "persistent": 0}


def opcodes(kernel: CompiledKernel) -> list[str]:
    try:
        return [i.opcode for i in disassemble(kernel.cubin, kernel.source.entry).instructions]
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("problem", "knobs"),
    [
        (Gemm(128, 7168, 4096), {**SMALL, "store": "shared"}),
        (Gemm(128, 2112, 7168), {**SMALL, "bn": 72, "stages": 7, "cluster": "1x1x4", "store": "direct"}),
        (Gemm(128, 2112, 7168), {**SMALL, "swap": 1, "splits": 4, "store": "direct"}),
    ],
)
def test_the_first_load_waits_for_no_other_thread_and_no_division(problem: Gemm, knobs: dict[str, int | str]) -> None:
    found = opcodes(compiled(problem, Configuration.of("hopper", {**BASE, **knobs})))
    before = found[: found.index("UTMALDG.2D")]
    leader = before[len(before) - before[::-1].index("ELECT") :]  # behind what the rest of the block branches around
    assert len(leader) < 60
    assert leader.index("UTMACCTL.PF") < leader.index("SYNCS.EXCH.64")
    assert not [o for o in before if o.startswith(("BAR", "MUFU", "UCGABAR", "WARPSYNC"))]
    assert "BAR.SYNC.DEFER_BLOCKING" in found[len(before) :]
    assert "BRA.U.ANY" not in found  # a loop over lanes that might differ


def test_the_first_load_of_a_dependent_launch_waits_for_the_kernel_before() -> None:
    knobs = {**SMALL, "store": "shared", "programmatic": 1}
    found = opcodes(compiled(Gemm(128, 7168, 4096), Configuration.of("hopper_programmatic", {**BASE, **knobs})))
    assert found.index("SYNCS.EXCH.64") < found.index("ACQBULK") < found.index("UTMALDG.2D")


@pytest.mark.parametrize("cluster", ["2x1", "1x4", "1x1x4", "2x1x2"])
def test_no_cluster_waits_for_global_memory(cluster: str) -> None:
    knobs = {**SMALL, "bn": 72, "stages": 6, "cluster": cluster, "store": "direct"}
    found = opcodes(compiled(Gemm(256, 2112, 7168), Configuration.of("hopper", {**BASE, **knobs})))
    assert "MEMBAR.ALL.GPU" not in found
    assert "UCGABAR_WAIT" in found


def test_a_tile_leaves_through_shared_memory_in_whole_vectors_without_branches() -> None:
    found = opcodes(compiled(Gemm(128, 7168, 4096), Configuration.of("hopper", {**BASE, **SMALL, "store": "shared"})))
    last = len(found) - found[::-1].index("STG.E.128")
    after = found[found.index("WARPGROUP.DEPBAR.LE") : last]
    assert after.count("STG.E.128") == after.count("LDS.128") == 8
    assert not [o for o in after if o.startswith(("STG.E.U16", "BSSY"))]
    assert len(after) < 200
