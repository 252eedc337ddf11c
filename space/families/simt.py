"""``simt``: GEMM on the FMA pipe, every output in some thread's registers, operands through shared memory as fp32.

Serves fp32, and fp16 and bf16 with fp32 accumulation, on every GPU since Volta; any layout, size, pitch and epilogue.
The kernel is ``codegen/templates/simt/kernel.cu.j2``.

The block's tile ``bm x bn`` is covered by warps, a warp's by ``lanes_m x lanes_n`` lanes, and a lane's ``tm x tn``
outputs come in strips of four, one strip of each lane after the other, so that fragment reads never meet in a bank. An
operand whose k axis is contiguous in memory is transposed on its way into shared memory; only such operands are padded,
since only their stores can conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gemmtune.space.configuration import Configuration, Parameter, Value
from gemmtune.space.constraint import Constraint
from gemmtune.space.expression import expression
from gemmtune.space.families import gemm_recipe
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

_SIDES = (16, 32, 64, 96, 128, 160, 192, 256)

# Quantities of the kernel alone: what plan() and the template need. Names are the knobs' and those before.
_LAYOUT: Mapping[str, str] = {
    "lanes_n": "32 // lanes_m",
    "warps_m": "bm // (lanes_m * tm)",
    "warps_n": "bn // (lanes_n * tn)",
    "threads": "32 * warps_m * warps_n",
    "pad_a": "pad if layout == 'nt' or layout == 'nn' else 0",
    "pad_b": "pad if layout == 'nt' or layout == 'tt' else 0",
    "shared": "4 * buffers * bk * (bm + pad_a + bn + pad_b)",
}


def _conflict(side: str, vec: str, pad: str) -> str:
    """How many lanes of a warp a transposing store sends to the fullest bank.

    A warp stores ``groups = bk / vec`` column groups of ``rows = 32 / groups`` rows; groups start ``vec * pitch`` words
    apart. With g the largest power of two that divides this distance and 32, groups fall onto 32 / g different starts,
    and starts closer together than ``rows`` overlap.
    """
    step = f"alignment({vec} * ({side} + {pad}), 32)"
    return f"max(1, (bk // {vec}) // min(max(1, bk // {vec}), 32 // {step}), (32 // max(1, bk // {vec})) // {step})"


class Simt(Family):
    """One thread, many outputs: register tiles on the FMA pipe."""

    name = "simt"
    summary = "register tiles on the FMA pipe: fp32, and fp16/bf16 with fp32 accumulation, since Volta"

    definitions: ClassVar[Mapping[str, str]] = {
        **_LAYOUT,
        "a_transposed": "1 if layout == 'nt' or layout == 'nn' else 0",
        "b_transposed": "1 if layout == 'nt' or layout == 'tt' else 0",
        "widest_a": "alignment(lda * size_a, 16) // size_a",
        "widest_b": "alignment(ldb * size_b, 16) // size_b",
        "row_a": "bk if a_transposed else bm",
        "row_b": "bk if b_transposed else bn",
        "loads_a": "ceil_div(bm * bk, vec_a * max(threads, 1))",
        "loads_b": "ceil_div(bn * bk, vec_b * max(threads, 1))",
        "words_a": "loads_a * max(1, vec_a * size_a // 4)",
        "words_b": "loads_b * max(1, vec_b * size_b // 4)",
        "staged": "words_a + words_b if buffers == 2 else 0",
        "registers": "tm * tn + tm + tn + staged + 24",
        "register_limit": "min(registers_per_thread, registers_per_sm // max(threads * min_blocks, 1) // 8 * 8)",
        "reserved": "1024 if capability >= 80 else 0",
        "conflict_a": f"{_conflict('bm', 'vec_a', 'pad_a')} if a_transposed else 1",
        "conflict_b": f"{_conflict('bn', 'vec_b', 'pad_b')} if b_transposed else 1",
    }

    constraints = (
        Constraint(
            "warp_tiling",
            "bm % (lanes_m * tm) == 0 and bn % (lanes_n * tn) == 0",
            "a warp of {lanes_m} x {lanes_n} lanes with {tm} x {tn} outputs each does not tile the block's {bm} x {bn}",
        ),
        Constraint(
            "threads",
            "threads >= 32 and threads <= threads_per_block and threads * min_blocks <= threads_per_sm",
            "{min_blocks} blocks of {threads} threads were asked for, but {gpu_name} allows {threads_per_block} a "
            "block and {threads_per_sm} an SM",
        ),
        Constraint(
            "tile_size",
            "(bm < 2 * m or bm == 16) and (bn < 2 * n or bn == 16) and (bk < 2 * k or bk == 8)",
            "a tile of {bm} x {bn} x {bk} is at least twice the problem's {m} x {n} x {k} in some direction",
        ),
        Constraint(
            "vector_alignment",
            "vec_a <= widest_a and vec_b <= widest_b",
            "loads of {vec_a} (A) and {vec_b} (B) elements were asked for, but leading dimensions {lda} and {ldb} keep "
            "rows aligned to {widest_a} and {widest_b} elements only",
        ),
        Constraint(
            "load_division",
            "row_a % vec_a == 0 and row_b % vec_b == 0 "
            "and threads % max(row_a // vec_a, 1) == 0 and threads % max(row_b // vec_b, 1) == 0 "
            "and bm * bk % (vec_a * threads) == 0 and bn * bk % (vec_b * threads) == 0",
            "{threads} threads with loads of {vec_a} (A) and {vec_b} (B) elements cannot share k tiles of {bm} x {bk} "
            "and {bn} x {bk}, with rows of {row_a} and {row_b} elements in memory, evenly",
        ),
        Constraint(
            "load_count",
            "loads_a <= 16 and loads_b <= 16",
            "each thread would fetch its part of a k tile in {loads_a} (A) and {loads_b} (B) loads, more than 16: use "
            "wider loads or more threads",
        ),
        Constraint(
            "unroll",
            "bk % unroll == 0",
            "a k loop of {bk} steps is not unrolled evenly by {unroll}",
        ),
        Constraint(
            "shared_memory",
            "shared <= shared_per_block and (shared + reserved) * min_blocks <= shared_per_sm",
            "{min_blocks} blocks need {shared} bytes of shared memory each, but {gpu_name} has {shared_per_block} a "
            "block and {shared_per_sm} an SM ({reserved} of them reserved for each block)",
        ),
        Constraint(
            "registers",
            "registers <= register_limit",
            "{tm} x {tn} accumulators, fragments and {staged} staged words take about {registers} registers, but "
            "{min_blocks} blocks of {threads} threads leave {register_limit} each",
        ),
        Constraint(
            "occupancy",
            "min_blocks == 1 or register_limit < registers_per_thread",
            "{min_blocks} blocks of {threads} threads fit an SM with all the registers a thread can have, so that "
            "min_blocks=1 asks for the same",
        ),
        Constraint(
            "raster",
            "group == 1 or group <= ceil_div(m, bm)",
            "{group} tile rows were to be walked together, but {m} rows make fewer of {bm} each",
        ),
        Constraint(
            "bank_layout",
            "conflict_a <= 4 and conflict_b <= 4",
            "transposing stores would meet {conflict_a} (A) and {conflict_b} (B) at a time in one shared-memory bank: "
            "pad rows by other than {pad}, or load other than {vec_a} and {vec_b} elements at a time",
        ),
    )

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """GEMMs of fp32, fp16 and bf16 on compute capability 7.0 and above."""
        if isinstance(problem, Gemm) and "tf32" in (problem.dtype, problem.b_dtype):
            return (
                "simt multiplies in full fp32 on the FMA pipe, which has no tf32: ask for family mma (compute "
                "capability 8.0 or above), or for dtype fp32"
            )
        return gemm_recipe.unsupported(problem, gpu, "simt", (7, 0))

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """Thirteen knobs; vector widths go by the element size, and padding only where something is transposed."""
        gemm = gemm_recipe.as_gemm(problem)
        widths = (1, 2, 4, 8)
        return (
            Parameter("bm", _SIDES, "rows of the block's tile"),
            Parameter("bn", _SIDES, "columns of the block's tile"),
            Parameter("bk", (8, 16, 32), "depth of a k tile"),
            Parameter("tm", (2, 4, 8, 16), "rows of outputs a thread"),
            Parameter("tn", (2, 4, 8, 16), "columns of outputs a thread"),
            Parameter("lanes_m", (2, 4, 8, 16), "lanes of a warp along the rows; 32 / lanes_m lie along the columns"),
            Parameter("vec_a", tuple(w for w in widths if w * gemm.a.bytes <= 16), "elements a load of A"),
            Parameter("vec_b", tuple(w for w in widths if w * gemm.b.bytes <= 16), "elements a load of B"),
            Parameter("pad", (0,) if gemm.layout == "tn" else (0, 4, 8), "fp32 elements of padding a transposed row"),
            Parameter("unroll", (2, 4, 8, 16), "k steps unrolled"),
            Parameter("buffers", (1, 2), "shared buffers; with 2, the next k tile travels through registers meanwhile"),
            Parameter("min_blocks", (1, 2, 3, 4, 6, 8), "blocks an SM that registers must leave room for"),
            Parameter("group", (1, 4, 8, 16), "tile rows walked together"),
        )

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """One block a tile; addresses and pitches must allow the vectors used."""
        gemm = gemm_recipe.as_gemm(problem)
        values = self._layout(gemm, configuration)
        bm, bn = values["bm"], values["bn"]
        aligned = [
            *gemm_recipe.aligned("a", gemm.a.bytes, values["vec_a"]),
            *gemm_recipe.aligned("b", gemm.b.bytes, values["vec_b"]),
            *gemm_recipe.aligned("d", gemm.out.bytes, values["vec_d"]),
        ]
        return LaunchRecipe(
            entry=self.name,
            block=(values["threads"], 1, 1),
            grid=gemm_recipe.grid(bm, bn),
            arguments=gemm_recipe.arguments(gemm),
            tile=gemm_recipe.tile(bm, bn, values["group"]),
            dynamic_shared=values["shared"],
            preconditions=(gemm_recipe.RUNTIME_M, *aligned),
            constants={"n": gemm.n, "k": gemm.k},
        )

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The knobs and the thread layout that follows from them."""
        return self._layout(gemm_recipe.as_gemm(problem), configuration)

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """A warp's k step is tm * tn multiply-adds and two fragment reads; the busier pipe sets the pace."""
        env = self.bind(problem, configuration, gpu)
        tm, tn, bk = env["tm"], env["tn"], env["bk"]
        reads = -(-tm // 4) + -(-tn // 4)
        stores = 0
        for x in "ab":
            loads, width = env[f"loads_{x}"], env[f"vec_{x}"]
            stores += loads * (width * env[f"conflict_{x}"] if env[f"{x}_transposed"] else -(-width // 4))
        loop = 8 / env["unroll"]  # counter, branch and address arithmetic a step
        loads = 4 * (env["loads_a"] + env["loads_b"]) + 40  # addresses, predicates and the barrier a k tile
        issue = tm * tn + reads + loop + (loads + stores) / bk
        # The four schedulers of an SM share one shared-memory pipe: a 16-byte fragment read keeps it for two cycles.
        pipe = 4 * (2 * reads + stores / bk)
        exposed = 1.0 if env["buffers"] == 2 else 0.85
        return Traits(
            tile_m=env["bm"],
            tile_n=env["bn"],
            tile_k=bk,
            splits=1,
            stages=env["buffers"],
            threads=env["threads"],
            shared_bytes=env["shared"],
            registers=min(env["registers"] + _REPORTED, env["register_limit"]),
            unit="fma",
            efficiency=exposed * tm * tn / max(issue, pipe),
            padded_k=expression("round_up(k, bk)")(env),
        )

    def starting_points(self, problem: Problem, gpu: Gpu) -> list[Configuration]:
        """Configurations known to do well somewhere, as far as they are valid here, best for large problems first."""
        knobs = {p.name: p.values for p in self.parameters(problem, gpu)}
        env = self.environment(problem, gpu)
        out = []
        for point in _STARTING_POINTS:
            values: dict[str, Value] = {name: known[0] for name, known in knobs.items()}
            values |= dict(zip(_STARTING_KNOBS, point, strict=True))
            bm, bn, bk = (int(values[name]) for name in ("bm", "bn", "bk"))
            threads = bm // int(values["tm"]) * (bn // int(values["tn"]))
            for x, side in (("a", bm), ("b", bn)):  # as wide as rows and an even share of the k tile allow
                widest = expression(f"alignment(ld{x} * size_{x}, 16) // size_{x}")(env)
                share = expression("alignment(side * bk // threads, 8)")({"side": side, "bk": bk, "threads": threads})
                values[f"vec_{x}"] = min(widest, share)
            values |= {"pad": 4 if 4 in knobs["pad"] else 0, "unroll": min(bk, 16), "buffers": 2}
            configuration = Configuration.of(self.name, values)
            if not self.why_invalid(problem, configuration, gpu):
                out.append(configuration)
        return out

    @staticmethod
    def _layout(gemm: Gemm, configuration: Configuration) -> dict[str, Any]:
        """The knobs with what follows from them and the problem alone, whatever the GPU."""
        values: dict[str, Any] = {"layout": gemm.layout, **configuration}
        for name, text in _LAYOUT.items():
            values[name] = expression(text)(values)
        strip = min(values["tn"], 4)
        pitch = gemm.ldd or gemm.n
        values["vec_d"] = min(strip, expression("alignment(x, 4)")({"x": pitch}))
        return values


_REPORTED = 24
"""Registers that NVRTC reports beyond the rule's (median of 500 kernels for sm_90a): fragments of two steps, addresses.
The rule stays below, since fewer of them can be had without spills."""

_STARTING_KNOBS = ("bm", "bn", "bk", "tm", "tn", "lanes_m", "min_blocks", "group")
_STARTING_POINTS: tuple[tuple[int, ...], ...] = (
    (128, 256, 16, 8, 16, 8, 1, 8),
    (256, 128, 16, 16, 8, 8, 1, 8),
    (128, 128, 8, 8, 8, 4, 2, 8),
    (128, 128, 16, 8, 8, 8, 2, 8),
    (128, 128, 16, 16, 8, 4, 1, 8),
    (128, 256, 16, 8, 8, 8, 1, 4),
    (128, 64, 16, 8, 8, 8, 1, 8),
    (128, 64, 8, 8, 4, 4, 3, 8),
    (64, 128, 16, 8, 8, 4, 1, 4),
    (64, 64, 16, 8, 4, 4, 1, 4),
    (64, 64, 16, 4, 4, 4, 4, 1),
    (32, 64, 32, 4, 4, 4, 1, 1),
    (32, 32, 32, 4, 2, 4, 1, 1),
    (16, 64, 32, 2, 4, 4, 1, 1),
)
