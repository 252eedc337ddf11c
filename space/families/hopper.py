"""``hopper``: GEMM on Hopper's warpgroup tensor cores (wgmma), operands brought by TMA through a ring of stages.

Serves bf16, fp16 (any layout) and tf32 (K-major, ``nt``) on compute capability 9.0, with fp32 accumulation, any output
type and epilogue. The kernel is ``codegen/templates/hopper/kernel.cu.j2``; knobs and rules in
:mod:`gemmtune.space.families.hopper_rules`.

One thread of a producer warpgroup fills stages of ``bk``, each with a full and an empty mbarrier, the first ones
before the block has met: on a small problem whatever precedes the first load counts. ``warpgroups`` consumers
multiply, together on one tile (cooperative) or each on its own in turns (ping-pong: one stores its tile while the
other multiplies). The producer leaves registers to them. A persistent grid walks the tiles in groups; ``splits`` or
stream-K share the K of a tile among blocks, whose sums the last one adds in a fixed order. Up to eight blocks of a
cluster load what they share once (multicast), or share the K of a tile: each leaves its sums in shared memory, where
the others read them (distributed shared memory), and adds up and stores a part of the tile; or both. With
``swap`` the kernel computes D transposed, so that a small M becomes wgmma's N, which may be any multiple of 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.expression import expression
from gemmtune.space.families import gemm_recipe, hopper_points, hopper_recipe
from gemmtune.space.families.hopper_rules import BUDGET, CLUSTERS, LAYOUT, RULES, STAGES
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

_WGMMA_TYPE = {"bf16": "bf16", "fp16": "f16", "tf32": "tf32"}
_MOST_SWAPPED_M = 256
"""Swapped operands are for a small M: D's rows then come in tiles of any multiple of 8."""


class Hopper(Family):
    """Warpgroup tensor cores fed by TMA."""

    name = "hopper"
    summary = "warpgroup tensor cores (wgmma) fed by TMA: bf16, fp16 and tf32 on compute capability 9.0"

    definitions: ClassVar[Mapping[str, str]] = {**LAYOUT, **BUDGET}
    constraints: ClassVar[tuple[Constraint, ...]] = RULES
    programmatic: ClassVar[int] = 0
    """Whether its kernels overlap their launch with the kernel before (programmatic dependent launch)."""

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """GEMMs of 16-bit or tf32 operands, whose rows lie a multiple of 16 bytes apart."""
        reason = gemm_recipe.unsupported(problem, gpu, self.name, (9, 0))
        if reason or not isinstance(problem, Gemm):
            return reason
        if gpu.capability != (9, 0):
            have = ".".join(map(str, gpu.capability))
            return f"{self.name} uses instructions of compute capability 9.0 alone, but {gpu.name} has {have}"
        if problem.dtype != problem.b_dtype:
            return (
                f"{self.name} multiplies operands of one dtype, but A is {problem.dtype} and B is {problem.b_dtype}: "
                f"convert one of them"
            )
        if problem.dtype not in _WGMMA_TYPE:
            return f"{self.name} multiplies bf16, fp16 and tf32, not {problem.dtype}: use family simt, or dtype tf32"
        if problem.dtype == "tf32" and problem.layout != "nt":
            return f"{self.name} reads tf32 with K contiguous in both operands, not layout {problem.layout}: use mma"
        env = problem.environment()
        for name in ("a", "b"):
            pitch = env[f"ld{name}"] * env[f"size_{name}"]
            if pitch % 16:
                return (
                    f"{self.name} loads by TMA, which needs rows a multiple of 16 bytes apart, but those of {name} are "
                    f"{pitch} apart: pad its leading dimension, or use mma or simt"
                )
        return None

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """Eighteen knobs; depth goes by the element size, and knobs without effect here have one value."""
        gemm = gemm_recipe.as_gemm(problem)
        line = 128 // gemm.a.bytes
        return (
            Parameter("bm", (64, 128, 192, 256), "the tile along wgmma's M (rows, or columns where swapped)"),
            Parameter("bn", tuple(range(8, 257, 8)), "the tile along wgmma's N"),
            Parameter("bk", (line, 2 * line), "depth of a stage"),
            Parameter("stages", STAGES, "stages in shared memory"),
            Parameter("warpgroups", (1, 2, 3), "consumers"),
            Parameter("schedule", ("cooperative", "pingpong"), "consumers share a tile, or multiply in turns"),
            Parameter("cluster", CLUSTERS, "blocks along wgmma's M and N that load together, or along K that add up"),
            Parameter("raster", ("rows", "columns"), "what tiles are grouped by"),
            Parameter("group", (1, 4, 8, 16), "tile rows (columns) walked together"),
            Parameter("splits", (1, 2, 3, 4, 6, 8), "blocks that share an output tile, each with a part of K"),
            Parameter("stream", (0, 1), "stream-K: cut the last tiles so that every block gets the same"),
            Parameter("swap", (0, 1) if gemm.m <= _MOST_SWAPPED_M else (0,), "compute D transposed"),
            Parameter("hints", ("none", "stream_a", "stream_b"), "which operand the L2 need not keep"),
            Parameter("store", ("direct", "shared", "tma"), "how outputs leave: from registers, coalesced, by TMA"),
            Parameter("producer", (24, 40), "registers the producer keeps"),
            Parameter("persistent", (0, 1), "as many blocks as fit, each with tile after tile"),
            Parameter("programmatic", (self.programmatic,), "start while the kernel before still ends"),
            Parameter("blocks", (1, 2), "blocks an SM that registers and shared memory must leave room for"),
        )

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """Tensor maps of both operands; one cluster a piece of work, or as many as fit where persistent."""
        gemm = gemm_recipe.as_gemm(problem)
        return hopper_recipe.recipe(gemm, self._layout(gemm, configuration), self.name)

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The knobs and what follows from them; ``bm`` and ``bn`` become the tile of D, ``pm`` and ``qn`` wgmma's."""
        gemm = gemm_recipe.as_gemm(problem)
        v = self._layout(gemm, configuration)
        same = (
            *("cp", "cq", "ck", "cluster_blocks", "q_parts", "gather_pitch"),
            *("slab", "slab_pitch", "slab_bytes", "vec_d"),
            "consumer_registers",
        )
        flags = ("p_rows_are_k", "q_rows_are_k", "reallocates", "shares")
        hint_a, hint_b = {"none": ("", ""), "stream_a": ("first", "last"), "stream_b": ("last", "first")}[v["hints"]]
        return {
            **{name: v[name] for name in same},
            **{name: bool(v[name]) for name in flags},
            "bm": v["rows"],
            "bn": v["columns"],
            "pm": v["bm"],
            "qn": v["bn"],
            "wgmma_type": _WGMMA_TYPE[gemm.dtype],
            "producer_registers": v["producer"],
            "p_hint": hint_b if v["swap"] else hint_a,
            "q_hint": hint_a if v["swap"] else hint_b,
            "odd_pieces": bool(v["slab"]) and v["blocks_p"] * (v["bn"] // v["slab"]) % 2 == 1,
        }

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """The pipe is busy but for narrow tiles, and during the epilogue where nothing multiplies meanwhile."""
        env = self.bind(problem, configuration, gpu)
        overlapped = env["schedule"] == "pingpong"
        depth = env["k_tiles"] * env["bk"] * env["size"] / 128
        epilogue = 8 if env["store"] == "direct" else 4  # in lines of K that would be multiplied meanwhile
        efficiency = env["bn"] / (env["bn"] + 12) * (0.98 if overlapped else depth / (depth + epilogue))
        return Traits(
            tile_m=env["rows"],
            tile_n=env["columns"],
            tile_k=env["bk"],
            splits=env["splits"] * env["ck"],
            gathered=env["ck"],
            stages=env["stages"],
            threads=env["threads"],
            shared_bytes=env["shared"],
            registers=min(255, env["launch_registers"]),
            unit="tensor",
            efficiency=efficiency,
            padded_k=env["k_tiles"] * env["bk"],
            synchronous=False,  # a producer runs ahead of the consumers
            ring=True,
            cluster=env["cluster_blocks"],
            streamed=bool(env["stream"]),
        )

    def starting_points(self, problem: Problem, gpu: Gpu) -> list[Configuration]:
        """Shapes of tiles that do well on an H200, with the width that fills the problem's last turn best."""
        points = hopper_points.points(self, gemm_recipe.as_gemm(problem), gpu)
        return [c for c in points if not self.why_invalid(problem, c, gpu)]

    @staticmethod
    def _layout(gemm: Gemm, configuration: Configuration) -> dict[str, Any]:
        """The knobs with what follows from them and the problem alone, whatever the GPU."""
        values: dict[str, Any] = {**gemm.environment(), **configuration}
        for name, text in LAYOUT.items():
            values[name] = expression(text)(values)
        widest = expression("alignment(ldd * size_d, 16) // size_d")(values)
        values["vec_d"] = 16 // gemm.out.bytes
        if values["ck"] > 1:
            values["vec_d"] = min(widest, 4)
        elif values["store"] == "direct":
            values["vec_d"] = 1 if values["swap"] else min(widest, 2)
        return values


class HopperProgrammatic(Hopper):
    """The same kernels, started while the kernel before them in the stream still ends.

    A family of its own, asked for by name: what it gains depends on what runs before it, so that its times compare
    with those of other kernels that are launched so, and with no others.
    """

    name = "hopper_programmatic"
    summary = "the hopper family with programmatic dependent launch; compare it with kernels launched so alone"
    searchable = False
    programmatic: ClassVar[int] = 1
