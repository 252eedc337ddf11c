"""``mma``: GEMM on the warp-level tensor cores (mma.sync), operands through a ring of k tiles in shared memory.

Serves fp16 since Turing (m16n8k8), and fp16, bf16 (m16n8k16) and tf32 (m16n8k8) since Ampere, all with fp32
accumulation; any layout, size, pitch and epilogue. The kernel is ``codegen/templates/mma/kernel.cu.j2``.

A block computes ``bm x bn`` outputs with warps of ``wm x wn`` each. ``cp.async`` brings k tiles of ``bk`` into a ring
of ``stages``, as wide as pitches allow (16, 8 or 4 bytes; single 2-byte elements, and everything on Turing, pass
through registers instead). A tile keeps the orientation of its matrix, and rows are padded or swizzled so that neither
ldmatrix nor plain loads meet in a bank. With ``splits`` > 1 several blocks share an output tile, each with a part of K;
the last one to finish adds their sums in a fixed order.
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
from gemmtune.space.recipe import LaunchRecipe, Precondition

_STEP_BYTES = 32
"""One step of the inner loop takes this much of K: 16 half-precision elements, or 8 of tf32."""

# Quantities of the kernel alone: what plan() and the template need, besides knobs and the problem's environment.
_LAYOUT: Mapping[str, str] = {
    "size": "size_a",
    "a_rows_are_k": "1 if layout == 'tn' or layout == 'tt' else 0",
    "b_rows_are_k": "1 if layout == 'nn' or layout == 'tn' else 0",
    "vec_a": "alignment(lda * size, 16)",
    "vec_b": "alignment(ldb * size, 16)",
    "warps": "max(1, (bm // wm) * (bn // wn))",
    "threads": "32 * warps",
    # tf32 elements whose rows are k are read word by word: such rows lie two chunks of 16 bytes apart, others one.
    "pad_a": "0 if smem == 'xor' else 32 if a_rows_are_k and size == 4 else 16",
    "pad_b": "0 if smem == 'xor' else 32 if b_rows_are_k and size == 4 else 16",
    "rows_a": "bk if a_rows_are_k else bm",
    "rows_b": "bk if b_rows_are_k else bn",
    "row_bytes_a": "(bm if a_rows_are_k else bk) * size",
    "row_bytes_b": "(bn if b_rows_are_k else bk) * size",
    "stage_bytes": "rows_a * (row_bytes_a + pad_a) + rows_b * (row_bytes_b + pad_b)",
    # One slab a warp: 16 rows of fp32, 8 floats off a multiple of 32 words so that rows do not meet in a bank.
    "slab_pitch": "wn + 8 if wn % 16 == 0 else wn",
    "slab_bytes": "warps * 16 * slab_pitch * 4 if store == 'shared' else 0",
    "shared": "max(stages * stage_bytes, slab_bytes)",
    # Row offsets inside a tile fit 32 bits, unless pitches are huge.
    "wide_a": "1 if rows_a * lda * size >= 4294967296 else 0",
    "wide_b": "1 if rows_b * ldb * size >= 4294967296 else 0",
}

# What a thread and a block ask of the GPU.
_BUDGET: Mapping[str, str] = {
    "steps": "bk * size // 32",
    "k_tiles": "ceil_div(k, bk)",
    "tiles": "ceil_div(m, bm) * ceil_div(n, bn)",
    "per_row_a": "max(1, row_bytes_a // vec_a)",
    "per_row_b": "max(1, row_bytes_b // vec_b)",
    "copies_a": "ceil_div(rows_a * per_row_a, threads)",
    "copies_b": "ceil_div(rows_b * per_row_b, threads)",
    "async_a": "1 if capability >= 80 and vec_a >= 4 else 0",
    "async_b": "1 if capability >= 80 and vec_b >= 4 else 0",
    "held": "(0 if async_a else copies_a * max(1, vec_a // 4)) + (0 if async_b else copies_b * max(1, vec_b // 4))",
    "accumulators": "wm * wn // 32",
    "fragment_registers": "fragments * (wm // 4 + wn // 4)",
    "addresses": "copies_a * (1 + wide_a) + copies_b * (1 + wide_b)",
    # Compared with what NVRTC reports: within 10 either way while there are registers left.
    "registers": "accumulators + fragment_registers + addresses + held + 2 + 12 * fragments",
    "register_limit": "min(registers_per_thread, registers_per_sm // (threads * blocks) // 8 * 8)",
}


class Mma(Family):
    """Warp-level tensor cores with a multistage pipeline."""

    name = "mma"
    summary = "warp-level tensor cores (mma.sync): fp16 since Turing; bf16, fp16 and tf32 since Ampere"

    definitions: ClassVar[Mapping[str, str]] = {**_LAYOUT, **_BUDGET}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "warp_tiling",
            "bm % wm == 0 and bn % wn == 0",
            "warps of {wm} x {wn} outputs do not tile the block's {bm} x {bn}",
        ),
        Constraint(
            "tile_size",
            "(bm < 2 * m or bm == 16) and (bn < 2 * n or bn <= 16) and (bk < 2 * k or bk * size <= 64)",
            "a tile of {bm} x {bn} x {bk} is twice the problem's {m} x {n} x {k} in some direction: most of it is idle",
        ),
        gemm_recipe.THREADS,
        Constraint(
            "shared_memory",
            "shared <= shared_per_block and (shared + 1024) * blocks <= shared_per_sm",
            "{blocks} blocks with {stages} stages of {stage_bytes} bytes need {shared} bytes of shared memory each, "
            "but {gpu_name} has {shared_per_block} a block and {shared_per_sm} an SM (1024 of them kept a block)",
        ),
        Constraint(
            "copy_division",
            "threads % per_row_a == 0 and threads % per_row_b == 0",
            "{threads} threads cannot share rows of {per_row_a} (A) and {per_row_b} (B) vectors evenly; vectors are "
            "{vec_a} and {vec_b} bytes wide, as leading dimensions {lda} and {ldb} allow",
        ),
        Constraint(
            "copy_count",
            "copies_a <= 32 and copies_b <= 32",
            "each thread would copy its part of a k tile in {copies_a} (A) and {copies_b} (B) vectors of {vec_a} and "
            "{vec_b} bytes, more than 32: use a smaller tile or more threads",
        ),
        Constraint(
            "registers",
            "registers <= register_limit",
            "{accumulators} accumulators, {fragment_registers} registers of fragments and {held} of copies under way "
            "take about {registers} registers, but {blocks} blocks of {threads} threads leave {register_limit} each",
        ),
        Constraint(
            "fragment_buffers",
            "fragments == 1 or steps % 2 == 0",
            "two fragment buffers alternate over the {steps} steps of a k tile, which must be even: use bk={bk} with "
            "fragments=1, or a larger bk",
        ),
        Constraint(
            "asynchronous_copies",
            "stages == 2 or async_a or async_b",
            "vectors of {vec_a} (A) and {vec_b} (B) bytes pass through registers on {gpu_name}, which hold one k tile: "
            "more than 2 stages ({stages}) would stay empty",
        ),
        Constraint(
            "pipeline_depth",
            "stages == 2 or stages <= ceil_div(k_tiles, splits) + 1",
            "{stages} stages hold more than the {k_tiles} k tiles that {splits} splits share",
        ),
        Constraint(
            "split_k",
            "splits <= k_tiles",
            "K={k} has {k_tiles} k tiles of {bk}, which cannot be split {splits} ways",
        ),
        Constraint(
            "split_work",
            "splits == 1 or tiles * (splits - 1) < 4 * sms",
            "{tiles} output tiles fill the {sms} SMs of {gpu_name} so well that {splits} splits of K only add traffic",
        ),
        Constraint(
            "raster",
            "group == 1 or ceil_div(m, bm) > (1 if group == 4 else group // 2)",
            "groups of {group} tile rows walk the {m} rows of the output, cut into tiles of {bm}, as smaller groups do",
        ),
    )

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """GEMMs of fp16 (compute capability 7.5), bf16 and tf32 (8.0), both operands alike."""
        reason = gemm_recipe.unsupported(problem, gpu, self.name, (7, 5))
        if reason or not isinstance(problem, Gemm):
            return reason
        if problem.dtype != problem.b_dtype:
            return (
                f"mma multiplies operands of one dtype, but A is {problem.dtype} and B is {problem.b_dtype}: convert "
                f"one of them"
            )
        if problem.dtype == "fp32":
            return (
                "mma runs on tensor cores, which do not multiply full fp32: use family simt, or dtype tf32 (fp32 "
                "storage, inputs rounded to 10 bits of mantissa)"
            )
        if problem.dtype != "fp16" and gpu.capability < (8, 0):
            have = ".".join(map(str, gpu.capability))
            return f"mma multiplies {problem.dtype} from compute capability 8.0 on, but {gpu.name} has {have}: use fp16"
        return None

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """Fourteen knobs; depth goes by the element size, and knobs without effect here have one value."""
        gemm = gemm_recipe.as_gemm(problem)
        tf32 = gemm.dtype == "tf32"
        return (
            Parameter("bm", (16, 32, 64, 96, 128, 192, 256), "rows of the block's tile"),
            Parameter("bn", (16, 32, 64, 96, 128, 192, 256), "columns of the block's tile"),
            Parameter("bk", (8, 16, 32, 64) if tf32 else (16, 32, 64, 128), "depth of a k tile"),
            Parameter("wm", (16, 32, 64, 96, 128), "rows of a warp's tile"),
            Parameter("wn", (8, 16, 32, 64, 96, 128), "columns of a warp's tile"),
            Parameter("stages", (2, 3, 4, 5, 6), "k tiles in shared memory"),
            Parameter("smem", ("xor", "pad"), "how rows of shared memory keep out of one bank: swizzled or padded"),
            # ldmatrix turns 16-bit elements only: tf32 operands whose rows are k are read word by word in any case.
            Parameter("ldmatrix", (0,) if tf32 and gemm.layout == "tn" else (0, 1), "read fragments with ldmatrix"),
            Parameter("fragments", (1, 2), "fragment buffers; with 2, the next step's are read meanwhile"),
            Parameter("unroll", (1, 2), "k tiles a turn of the loop"),
            Parameter("splits", (1, 2, 3, 4, 6, 8, 12, 16), "blocks that share an output tile, each with a part of K"),
            Parameter("group", (1, 4, 8, 16), "tile rows walked together"),
            Parameter("store", ("direct", "shared"), "outputs straight from registers, or regrouped in shared memory"),
            Parameter("blocks", (1, 2), "blocks an SM that registers must leave room for"),
        )

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """One block a tile and split; addresses and pitches must allow the vectors used."""
        gemm = gemm_recipe.as_gemm(problem)
        v = self._layout(gemm, configuration)
        bm, bn, splits = v["bm"], v["bn"], v["splits"]
        blocks = f"ceil_div(m, {bm}) * ceil_div(n, {bn})"
        conditions = [
            gemm_recipe.RUNTIME_M,
            *gemm_recipe.aligned("a", gemm.a.bytes, v["vec_a"] // gemm.a.bytes),
            *gemm_recipe.aligned("b", gemm.b.bytes, v["vec_b"] // gemm.b.bytes),
            *gemm_recipe.aligned("d", gemm.out.bytes, v["vec_d"]),
        ]
        for name in ("a", "b"):
            if not v[f"wide_{name}"]:
                limit = 2**32 // (v[f"rows_{name}"] * v["size"])
                conditions.append(
                    Precondition(
                        f"ld{name} < {limit}",
                        f"the leading dimension of {name} is {limit} elements or more, past 32-bit row offsets",
                    )
                )
        return LaunchRecipe(
            entry=self.name,
            block=(v["threads"], 1, 1),
            grid=gemm_recipe.grid(bm, bn, splits),
            arguments=gemm_recipe.arguments(gemm, workspace=splits > 1),
            tile=gemm_recipe.tile(bm, bn, v["group"]),
            dynamic_shared=v["shared"],
            workspace=f"{blocks} * {splits * bm * bn * 4}" if splits > 1 else "0",
            counters=f"{blocks} * 4" if splits > 1 else "0",
            preconditions=tuple(conditions),
            constants={"n": gemm.n, "k": gemm.k},
        )

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The knobs and what follows from them: vector widths in bytes (``vec_d`` in elements), pitches, readers."""
        gemm = gemm_recipe.as_gemm(problem)
        v = self._layout(gemm, configuration)
        names = ("vec_a", "vec_b", "vec_d", "slab_pitch")
        return {
            **{name: v[name] for name in names},
            "offset_a": "i64" if v["wide_a"] else "u32",
            "offset_b": "i64" if v["wide_b"] else "u32",
            "ldmatrix_a": bool(v["ldmatrix"]) and not (gemm.dtype == "tf32" and v["a_rows_are_k"]),
            "ldmatrix_b": bool(v["ldmatrix"]) and not (gemm.dtype == "tf32" and v["b_rows_are_k"]),
        }

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """Per step, the tensor pipe works while shared memory serves fragments and takes copies: the slower counts."""
        env = self.bind(problem, configuration, gpu)
        context = self.context(problem, configuration)
        bm, bn, wm, wn = env["bm"], env["bn"], env["wm"], env["wn"]
        pipe = _PIPE.get(gpu.capability[0], 1.0)
        peak = gpu.peak.get(env["dtype"], gpu.peak["fp32"]) / (2 * gpu.sms * gpu.clock) * pipe
        multiply = bm * bn * (_STEP_BYTES / env["size"]) / peak
        # 128 bytes a clock; without ldmatrix a word a lane, and single 16-bit elements where k is not contiguous.
        read_a = wm * (1 if context["ldmatrix_a"] or env["size"] == 4 or not env["a_rows_are_k"] else 2)
        read_b = wn * (1 if context["ldmatrix_b"] or env["size"] == 4 or not env["b_rows_are_k"] else 2)
        shared = (env["warps"] * (read_a + read_b) + bm + bn) * _STEP_BYTES / 128
        overlap = 0.9 if env["fragments"] == 2 else 0.8
        slower, faster = max(multiply, shared), min(multiply, shared)
        return Traits(
            tile_m=bm,
            tile_n=bn,
            tile_k=env["bk"],
            splits=env["splits"],
            stages=env["stages"],
            threads=env["threads"],
            shared_bytes=env["shared"],
            registers=env["registers"],
            unit="tensor",
            efficiency=pipe * multiply / (slower + (1 - overlap) * faster) / (_PADDED if env["smem"] == "pad" else 1),
            padded_k=env["k_tiles"] * env["bk"],
        )

    def starting_points(self, problem: Problem, gpu: Gpu) -> list[Configuration]:
        """Configurations known to do well somewhere, as far as they are valid here, best for large problems first."""
        parameters = {p.name: p.values for p in self.parameters(problem, gpu)}
        size = gemm_recipe.as_gemm(problem).a.bytes
        out = []
        for point in _STARTING_POINTS:
            own: dict[str, Value] = dict(zip(_STARTING_KNOBS, point, strict=True))
            own["bk"] = int(own["bk"]) // size
            values = {name: own.get(name, known[-1]) for name, known in parameters.items()}
            values |= {"smem": "xor", "unroll": 1}
            configuration = Configuration.of(self.name, values)
            if not self.why_invalid(problem, configuration, gpu):
                out.append(configuration)
        return out

    @staticmethod
    def _layout(gemm: Gemm, configuration: Configuration) -> dict[str, Any]:
        """The knobs with what follows from them and the problem alone, whatever the GPU."""
        values: dict[str, Any] = {**gemm.environment(), **configuration}
        for name, text in _LAYOUT.items():
            values[name] = expression(text)(values)
        widest = expression("alignment(ldd * size_d, 16) // size_d")(values)
        values["vec_d"] = min(widest, 2 if values["store"] == "direct" else values["wn"])
        return values


_PIPE: Mapping[int, float] = {9: 0.75, 10: 0.35}
"""Fraction of the dense peak that mma.sync reaches with many warps, by major compute capability: newer generations keep
their full rate for warpgroup instructions (Hopper: about 0.62 with eight warps an SM)."""

_PADDED = 1.2
"""What padded rows cost beside swizzled ones, which rest in fewer banks: fitted to recorded trials on an H200."""

# bk in bytes of a row; every other knob swizzled, with ldmatrix where it can be, not unrolled.
_STARTING_KNOBS = ("bm", "bn", "bk", "wm", "wn", "stages", "fragments", "splits", "group", "store", "blocks")
_STARTING_POINTS: tuple[tuple[Value, ...], ...] = (
    (128, 256, 128, 64, 64, 3, 2, 1, 8, "shared", 1),
    (256, 128, 128, 64, 64, 3, 2, 1, 8, "shared", 1),
    (128, 128, 128, 64, 64, 3, 2, 1, 8, "shared", 2),
    (128, 256, 128, 64, 64, 4, 2, 1, 8, "shared", 1),
    (256, 128, 128, 64, 64, 4, 2, 1, 8, "shared", 1),
    (128, 256, 64, 64, 64, 4, 2, 1, 8, "shared", 1),
    (128, 128, 64, 64, 32, 5, 2, 1, 8, "direct", 1),
    (128, 64, 128, 32, 32, 3, 2, 1, 8, "shared", 2),
    (64, 128, 128, 32, 64, 4, 2, 2, 4, "direct", 1),
    (64, 64, 128, 32, 32, 4, 2, 4, 1, "direct", 2),
    (32, 128, 128, 32, 32, 4, 2, 4, 1, "shared", 2),
    (16, 128, 128, 16, 32, 6, 2, 4, 1, "shared", 1),
    # Turing: copies through registers, two stages.
    (128, 128, 64, 64, 64, 2, 1, 1, 8, "direct", 1),
    (128, 64, 64, 64, 32, 2, 2, 1, 4, "shared", 1),
    (64, 64, 64, 32, 32, 2, 2, 4, 1, "direct", 2),
)
