"""``skinny``: GEMM with few rows (decoding one token to some tens), which the memory that holds B bounds.

Serves fp32, fp16 and bf16 with fp32 accumulation up to M = 64, since Turing; any layout, pitch and epilogue. The kernel
is ``codegen/templates/skinny/kernel.cu.j2``.

Each weight is read once and straight into registers: a lane keeps a ring of ``depth`` steps in flight, and refills the
place of a step as soon as it has multiplied it. The few rows of A come from the L1, or from a copy in shared memory.
Two cores multiply. ``fma`` converts to fp32 and works for every type and width of load. ``mma`` runs on mma.sync, with
weights straight from the registers they were loaded into: since the order of k inside a product is free, a lane's 16
bytes serve as fragments as they are (where B is stored [K,N], after joining rows two by two). A block's warps lie along
the columns (``warps_n``) and along K (``warps_k``); ``splits`` blocks may share a tile, and the last of them to finish
adds up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
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

MOST_ROWS = 64
"""Beyond, arithmetic and not memory bounds the problem."""

# Quantities of the kernel alone: what plan() and the template need, besides knobs and the problem's environment.
_LAYOUT: Mapping[str, str] = {
    "along_k": "1 if layout == 'nt' or layout == 'tt' else 0",  # B's rows in memory
    "tensor": "1 if core == 'mma' else 0",
    "columns": "(tn * 8 if along_k else tn * 64) if tensor else (1 if along_k else vec) * tn * (32 // lanes_k)",
    "step": "(64 if along_k else 16) if tensor else lanes_k * (vec if along_k else 4)",
    "bn": "columns * warps_n",
    "threads": "32 * warps_n * warps_k",
    "steps": "ceil_div(k, step)",
    "slice": "ceil_div(steps, splits) * step",
    # k elements of A that a lane wants at once, and how many of them one load may bring
    "wanted_a": "8 if tensor and along_k else vec if along_k and not tensor else 4",
    "widest_a": "1 if layout == 'tn' or layout == 'tt' else "
    "min(alignment(lda * size_a, 16), alignment(k * size_a, 16), alignment(step * size_a, 16)) // size_a",
    "vec_a": "widest_a if activations == 'shared' else min(widest_a, wanted_a)",
    # Eight rows are read at once by mma: 64 (or, 8 bytes a lane, 32) bytes off a multiple of 128, they meet in no bank.
    "pitch": "(round_up(slice * size_a, 128) + (64 if along_k else 32) if tensor else round_up(slice * size_a, 16))"
    " // size_a",
    "copy_bytes": "bm * pitch * size_a if activations == 'shared' else 0",
    "sum_bytes": "4 * warps_k * bm * bn",
    "shared": "max(copy_bytes, sum_bytes, 16)",
}

# What a thread asks of the GPU.
_BUDGET: Mapping[str, str] = {
    "tiles": "ceil_div(m, bm) * ceil_div(n, bn)",
    "turns": "ceil_div(ceil_div(steps, splits), warps_k)",
    "contiguous": "(64 if along_k else 128) if tensor else (lanes_k if along_k else 32 // lanes_k) * vec * size_b",
    "loads": "(2 * tn if tensor else tn) if along_k else 4 * tn",
    "ring": "loads * depth * max(1, vec * size_b // 4)",
    "accumulators": "round_up(bm, 16 if along_k else 8) * columns // 32 if tensor"
    " else bm * tn * (1 if along_k else vec)",
    "operands": "(24 if along_k else bm // 4 + 16) if tensor else vec * (tn + 2) if along_k else vec + bm * size_a",
    "addresses": "(2 * tn if along_k else 10) if tensor else 2 * tn if along_k else 10",
    # Rows of A that are read where they lie have a pointer each, and travel together.
    "rows_of_a": "0 if activations == 'shared' else 4 * (bm - 1) if not tensor"
    " else max(0, bm + bm // 4 - 16) if along_k else bm // 4",
    "products": "0 if tensor else bm * loads * vec * depth",
    # Compared with what NVRTC reports for 98 of the space: within 20 of nearly all.
    "registers": "accumulators + ring + operands + addresses + rows_of_a"
    " + (12 if bm == 1 and along_k and activations == 'cache' else 24)",
    "register_limit": "min(registers_per_thread, registers_per_sm // (threads * blocks) // 8 * 8)",
}


_FMA_ROWS = 16
"""Multiply-adds a weight that the FMA pipe keeps up with."""


def _rows(m: int, core: str) -> int:
    """Rows of a tile that holds all of ``m``: a power of two for the FMA core, a multiple of eight for the other."""
    return -(-m // 8) * 8 if core == "mma" else 1 << (m - 1).bit_length()


def _widest(gemm: Gemm) -> int:
    """Weights a load of up to 16 bytes can bring, by the pitch of B and the length of its rows."""
    row = gemm.k if gemm.layout[1] == "t" else gemm.n
    pitch = gemm.ldb or row
    return next(w for w in (8, 4, 2, 1) if w * gemm.b.bytes <= 16 and row % w == 0 and pitch % w == 0)


def _ladder(value: Value) -> tuple[int, ...]:
    """A value of a starting point, and what to try where it does not fit: half of it, and one."""
    return tuple(dict.fromkeys((int(value), max(1, int(value) // 2), 1)))


class Skinny(Family):
    """Few rows, every weight streamed once through registers."""

    name = "skinny"
    summary = "few rows (M up to 64), weights streamed once through registers: fp32, fp16 and bf16, since Turing"

    definitions: ClassVar[Mapping[str, str]] = {**_LAYOUT, **_BUDGET}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "tile_rows",
            "bm >= m and (bm < 2 * m or bm == (8 if tensor else 1)) and (not tensor or bm < m + 8)",
            "tiles of {bm} rows do not suit M={m} and core={core}: one tile must hold all rows, so that each weight is "
            "read once, and no more rows than need be",
        ),
        Constraint(
            "fragment",
            "not tensor or (bm % 8 == 0 and vec * size_b == 16 and lanes_k == 4)",
            "core=mma takes rows by 8 and weights by 16 bytes, with 4 lanes along K, but bm={bm}, vec={vec} and "
            "lanes_k={lanes_k} were asked for",
        ),
        Constraint(
            "contiguous_loads",
            "contiguous >= 64",
            "neighbouring lanes would read {contiguous} bytes of a row of B side by side, but memory moves 64 at least",
        ),
        Constraint(
            "tile_columns",
            "bn < 2 * n or (warps_n == 1 and tn == 1)",
            "a block of {bn} columns is twice as wide as N={n}",
        ),
        gemm_recipe.THREADS,
        Constraint(
            "shared_memory",
            "shared <= shared_per_block and (shared + 1024) * blocks <= shared_per_sm",
            "{blocks} blocks need {shared} bytes of shared memory each, but {gpu_name} has {shared_per_block} a block "
            "and {shared_per_sm} an SM (1024 of them kept a block)",
        ),
        Constraint(
            "registers",
            "registers <= register_limit",
            "{ring} registers of weights in flight and {accumulators} accumulators make about {registers} registers, "
            "but {blocks} blocks of {threads} threads leave {register_limit} each",
        ),
        Constraint(
            "code_size",
            "products <= 4096",
            "{depth} steps of {loads} loads unroll into {products} multiply-adds: more than 4096 take long to compile",
        ),
        Constraint(
            "ring_depth",
            "depth == 1 or depth <= turns",
            "a ring of {depth} steps would stay empty: K={k}, split {splits} ways over {warps_k} warps, gives a warp "
            "{turns} steps of {step}",
        ),
        Constraint(
            "idle_warps",
            "warps_k == 1 or warps_k <= ceil_div(steps, splits)",
            "{warps_k} warps cannot share the steps of {step} that {splits} splits of K={k} leave to a block",
        ),
        Constraint(
            "split_k",
            "splits <= steps",
            "K={k} has {steps} steps of {step}, which cannot be split {splits} ways",
        ),
        Constraint(
            "split_work",
            "splits == 1 or tiles * (splits - 1) < 8 * sms",
            "{tiles} blocks fill the {sms} SMs of {gpu_name} so well that {splits} splits of K only add traffic",
        ),
        Constraint(
            "hint",
            "capability >= 80 or hint == 'plain' or hint == 'stream'",
            "hint={hint} needs compute capability 8.0, which {gpu_name} lacks: use hint=stream",
        ),
    )

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """GEMMs of fp32, fp16 and bf16 with no more than 64 rows on compute capability 7.5 and above."""
        reason = gemm_recipe.unsupported(problem, gpu, self.name, (7, 5))
        if reason or not isinstance(problem, Gemm):
            return reason
        if "tf32" in (problem.dtype, problem.b_dtype):
            return "skinny multiplies in full fp32 and has no tf32: ask for family mma, or for dtype fp32"
        if problem.m > MOST_ROWS:
            return f"skinny streams weights past at most {MOST_ROWS} rows, but M is {problem.m}: use another family"
        if not self._cores(problem, gpu):
            return (
                f"skinny multiplies more than {_FMA_ROWS} rows on tensor cores alone, which take two operands of fp16 "
                f"(bf16 from compute capability 8.0 on) with rows of B that are multiples of 16 bytes"
            )
        return None

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """Twelve knobs; rows and loads come in the few sizes that fit this problem."""
        gemm = gemm_recipe.as_gemm(problem)
        cores = self._cores(gemm, gpu)
        widest = _widest(gemm)
        return (
            Parameter("core", cores, "what multiplies: FMA in fp32, or mma.sync"),
            Parameter("bm", tuple(sorted({_rows(gemm.m, c) for c in cores})), "rows of the tile"),
            Parameter("tn", (1, 2, 4, 8), "columns, vectors of columns (fma) or groups of them (mma) a warp's lane"),
            Parameter("lanes_k", (1, 2, 4, 8, 16, 32), "lanes of a warp along K; the others lie along the columns"),
            Parameter("vec", (widest,) if widest == 1 else (widest // 2, widest), "weights a load"),
            Parameter("depth", (1, 2, 3, 4, 6, 8, 12, 16), "steps a lane keeps in flight"),
            Parameter("warps_n", (1, 2, 4, 8), "warps along the columns"),
            Parameter("warps_k", (1, 2, 4, 8, 16), "warps that share a block's part of K"),
            Parameter("splits", (1, 2, 3, 4, 6, 8, 12, 16, 32), "blocks that share a tile, each with a part of K"),
            Parameter("activations", ("cache", "shared"), "A through the L1, or copied into shared memory first"),
            Parameter("hint", ("plain", "stream", "far", "first"), "what the caches should make of the weights"),
            Parameter("blocks", (1, 2, 3, 4, 6, 8), "blocks an SM that registers must leave room for"),
        )

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """One block a tile and split; addresses and pitches must allow the vectors used."""
        gemm = gemm_recipe.as_gemm(problem)
        v = self._layout(gemm, configuration)
        bm, bn, splits = v["bm"], v["bn"], v["splits"]
        blocks = f"ceil_div(m, {bm}) * ceil_div(n, {bn})"
        return LaunchRecipe(
            entry=self.name,
            block=(v["threads"], 1, 1),
            grid=gemm_recipe.grid(bm, bn, splits),
            arguments=gemm_recipe.arguments(gemm, workspace=splits > 1),
            tile=gemm_recipe.tile(bm, bn, 1),
            dynamic_shared=v["shared"],
            workspace=f"{blocks} * {splits * bm * bn * 4}" if splits > 1 else "0",
            counters=f"{blocks} * 4" if splits > 1 else "0",
            preconditions=(
                gemm_recipe.RUNTIME_M,
                *gemm_recipe.aligned("a", gemm.a.bytes, v["vec_a"]),
                *gemm_recipe.aligned("b", gemm.b.bytes, v["vec"]),
            ),
            constants={"n": gemm.n, "k": gemm.k},
        )

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The knobs and what follows from them; ``bk`` is the step of one warp, and tiles have no raster to choose."""
        v = self._layout(gemm_recipe.as_gemm(problem), configuration)
        return {"bn": v["bn"], "bk": v["step"], "vec_a": v["vec_a"], "pitch": v["pitch"], "group": 1}

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """The bytes in flight decide; arithmetic shows where rows are many for the core."""
        env = self.bind(problem, configuration, gpu)
        vec, loads, bm, wanted = env["vec"], env["loads"], env["bm"], env["wanted_a"]
        if env["tensor"]:
            efficiency = 0.5
        else:
            # Instructions a step: products, conversions of weights and activations, loads and their addresses.
            products = bm * loads * vec
            reads = bm * (wanted + -(-wanted // max(1, env["vec_a"])))
            efficiency = products / (products + loads * (vec + 3) + reads + 6)
        step = env["step"] * env["warps_k"]
        return Traits(
            tile_m=bm,
            tile_n=env["bn"],
            tile_k=step,
            splits=env["splits"],
            stages=1 + env["depth"],
            threads=env["threads"],
            shared_bytes=env["shared"],
            registers=min(env["registers"], env["register_limit"]),
            unit="tensor" if env["tensor"] else "fma",
            efficiency=efficiency,
            padded_k=-(-env["k"] // step) * step,
            synchronous=False,  # no barrier: each warp walks its own part of k
        )

    def starting_points(self, problem: Problem, gpu: Gpu) -> list[Configuration]:
        """Configurations that keep 30 KB and more in flight an SM, as far as they are valid; few rows on FMA first."""
        gemm = gemm_recipe.as_gemm(problem)
        knobs = {p.name: p.values for p in self.parameters(problem, gpu)}
        out = []
        for point in _STARTING_POINTS[gemm.layout[1] == "t"]:
            values: dict[str, Value] = dict(zip(_STARTING_KNOBS, point, strict=True))
            values |= {"bm": _rows(gemm.m, str(values["core"])), "vec": _widest(gemm)}
            if gpu.capability < (8, 0):
                values["hint"] = "stream"
            if not all(value in knobs[name] for name, value in values.items()):
                continue
            for splits, blocks, depth in product(*(_ladder(values[name]) for name in ("splits", "blocks", "depth"))):
                known = {**values, "splits": splits, "blocks": blocks, "depth": depth}
                configuration = Configuration.of(self.name, {name: known[name] for name in knobs})
                if not self.why_invalid(problem, configuration, gpu):
                    out.append(configuration)
                    break
        out = list(dict.fromkeys(out))
        return sorted(out, key=lambda c: (c["core"] == "fma") == (gemm.m > 4))

    @staticmethod
    def _cores(gemm: Gemm, gpu: Gpu) -> tuple[str, ...]:
        """The cores that multiply these types, fit these rows and have whole loads: perhaps none."""
        halves = gemm.dtype == gemm.b_dtype and gemm.b.bytes == 2 and (gemm.dtype == "fp16" or gpu.capability >= (8, 0))
        fma = ("fma",) if gemm.m <= _FMA_ROWS else ()
        return (*fma, *(("mma",) if halves and _widest(gemm) == 8 else ()))

    @staticmethod
    def _layout(gemm: Gemm, configuration: Configuration) -> dict[str, Any]:
        """The knobs with what follows from them and the problem alone, whatever the GPU."""
        values: dict[str, Any] = {**gemm.environment(), **configuration}
        for name, text in _LAYOUT.items():
            values[name] = expression(text)(values)
        return values


_STARTING_KNOBS = (
    "core", "tn", "lanes_k", "depth", "warps_n", "warps_k", "splits", "activations", "hint", "blocks",
)  # fmt: skip
# By whether B's rows lie along K. Reckoned for a card that wants 30 KB in flight on each of 132 SMs; with many rows,
# blocks are wide, so that what they read of A stays small beside the weights.
_STARTING_POINTS: Mapping[bool, tuple[tuple[Value, ...], ...]] = {
    True: (
        ("fma", 1, 32, 6, 4, 1, 1, "cache", "first", 8),
        ("fma", 1, 32, 8, 1, 4, 1, "cache", "stream", 6),
        ("fma", 2, 32, 4, 1, 8, 1, "cache", "first", 2),
        ("fma", 4, 32, 2, 1, 8, 1, "shared", "stream", 2),
        ("fma", 4, 32, 2, 2, 4, 1, "cache", "far", 2),
        ("fma", 1, 16, 8, 1, 4, 1, "shared", "first", 4),
        ("fma", 2, 32, 4, 4, 1, 4, "shared", "stream", 2),
        ("fma", 1, 8, 4, 4, 2, 1, "shared", "stream", 2),
        ("fma", 4, 16, 1, 4, 2, 2, "shared", "first", 2),
        ("mma", 2, 4, 4, 4, 2, 4, "cache", "first", 2),
        ("mma", 2, 4, 4, 4, 2, 4, "shared", "stream", 2),
        ("mma", 2, 4, 4, 4, 2, 1, "cache", "first", 2),
        ("mma", 4, 4, 2, 4, 2, 1, "cache", "stream", 1),
        ("mma", 2, 4, 4, 2, 4, 1, "cache", "far", 2),
        ("mma", 4, 4, 2, 4, 2, 8, "cache", "first", 1),
        ("mma", 2, 4, 2, 2, 8, 2, "cache", "far", 1),
        ("mma", 1, 4, 4, 1, 8, 1, "cache", "stream", 3),
        ("mma", 1, 4, 4, 4, 2, 2, "shared", "first", 2),
        ("mma", 2, 4, 6, 4, 1, 8, "shared", "first", 3),
        ("mma", 4, 4, 2, 2, 4, 1, "cache", "stream", 1),
    ),
    False: (
        ("fma", 1, 4, 2, 1, 8, 4, "shared", "stream", 2),
        ("fma", 1, 4, 2, 2, 4, 8, "cache", "first", 2),
        ("fma", 1, 1, 2, 1, 8, 12, "shared", "stream", 2),
        ("fma", 1, 4, 1, 2, 8, 8, "shared", "far", 1),
        ("fma", 1, 4, 3, 1, 16, 4, "shared", "first", 1),
        ("mma", 1, 4, 4, 1, 8, 4, "shared", "stream", 1),
        ("mma", 1, 4, 2, 1, 8, 8, "cache", "first", 2),
        ("mma", 1, 4, 2, 2, 4, 8, "shared", "far", 2),
        ("mma", 1, 4, 4, 2, 4, 8, "cache", "first", 1),
        ("mma", 1, 4, 4, 1, 8, 1, "cache", "first", 1),
        ("mma", 2, 4, 2, 1, 8, 8, "shared", "stream", 1),
    ),
}
