"""How hopper kernels are launched: tensor maps, persistent grids, the order of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.space.families import gemm_recipe
from gemmtune.space.families.hopper_rules import LINE_BYTES
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import Argument, LaunchRecipe, Precondition, Tile
from gemmtune.space.tensor_map import TensorMapSpec

_ELEMENT = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "tf32": "tf32"}
_L2_PROMOTION = 128


def recipe(gemm: Gemm, v: Mapping[str, Any], entry: str) -> LaunchRecipe:
    """The launch recipe for the bound layout ``v`` (knobs and :data:`gemmtune.space.families.hopper_rules.LAYOUT`).

    Block ``bx`` of the tile's expressions counts pieces of work: a persistent block ``b`` of ``g`` does pieces ``b``,
    ``b + g``, ``b + 2 g`` and so on (with stream-K, other parts of the same tiles).
    """
    tiles = f"ceil_div(m, {v['cluster_rows']}) * ceil_div(n, {v['cluster_columns']})"
    cluster, splits = v["cluster_blocks"], v["splits"]
    area = 4 * v["bm"] * v["bn"] * cluster
    workspace = counters = "0"
    clusters = f"{tiles} * {splits}" if splits > 1 else tiles
    resident = f"max(1, sms * {v['blocks']} // {cluster})"
    if v["stream"]:  # shares of four k tiles or more, where there are so many; never an empty one
        clusters = f"min({tiles} * {max(1, v['k_tiles'] // 4)}, {resident})"
        workspace = f"2 * {clusters} * {area}"
    elif v["persistent"]:
        clusters = f"min({clusters}, {resident})"
    if splits > 1:
        workspace = f"{tiles} * {splits * area}"
    if v["shares"]:
        counters = f"{tiles} * {4 * cluster * (1 if v['schedule'] == 'pingpong' else v['warpgroups'])}"
    per_access = {"a": 16 // gemm.a.bytes, "b": 16 // gemm.b.bytes, "d": v["vec_d"]}
    sizes = {"a": gemm.a.bytes, "b": gemm.b.bytes, "d": gemm.out.bytes}
    return LaunchRecipe(
        entry=entry,
        block=(v["threads"], 1, 1),
        grid=(clusters if cluster == 1 else f"{clusters} * {cluster}", "1", "1"),
        arguments=_arguments(gemm, v),
        tile=tile(v),
        cluster=(cluster, 1, 1),
        dynamic_shared=v["shared"],
        workspace=workspace,
        counters=counters,
        preconditions=(
            gemm_recipe.RUNTIME_M,
            *(c for name, count in per_access.items() for c in gemm_recipe.aligned(name, sizes[name], count)),
            *_pitch_limits(),
        ),
        constants={"n": gemm.n, "k": gemm.k},
        programmatic=bool(v["programmatic"]),
    )


def _pitch_limits() -> tuple[Precondition, ...]:
    return tuple(
        Precondition(f"ld{name} < {2**37}", f"the leading dimension of {name} is past what a tensor map can hold")
        for name in ("a", "b")
    )


def tile(v: Mapping[str, Any]) -> Tile:
    """Origin of piece ``bx``: the arithmetic of ``Schedule::at`` in the template, as expressions."""
    down, across = f"ceil_div(m, {v['cluster_rows']})", f"ceil_div(n, {v['cluster_columns']})"
    item = "bx" if v["cluster_blocks"] == 1 else f"(bx // {v['cluster_blocks']})"
    if v["splits"] > 1:
        item = f"({item} // {v['splits']})"
    group = v["group"]
    along, other = (down, across) if v["raster"] == "rows" else (across, down)
    first = f"({item} // ({group} * {other}) * {group})"
    inside = f"({item} % ({group} * {other}))"
    width = f"min({along} - {first}, {group})"
    near, far = f"({first} + {inside} % {width})", f"({inside} // {width})"
    row, column = (near, far) if v["raster"] == "rows" else (far, near)
    # A block's ranks along P and Q. Blocks that share K share the tile.
    cp, cq = v["cp"], v["cq"]
    p_rank = f" * {cp} + bx % {cp}" if cp > 1 else ""
    q_rank = (f" * {cq} + bx // {cp} % {cq}" if cp > 1 else f" * {cq} + bx % {cq}") if cq > 1 else ""
    down_rank, across_rank = (q_rank, p_rank) if v["swap"] else (p_rank, q_rank)
    row = f"({row}{down_rank})" if down_rank else row
    column = f"({column}{across_rank})" if across_rank else column
    return Tile(v["rows"], v["columns"], f"{row} * {v['rows']}", f"{column} * {v['columns']}")


def _arguments(gemm: Gemm, v: Mapping[str, Any]) -> tuple[Argument, ...]:
    """In the order of the kernel's parameters."""
    p, q = ("b", "a") if v["swap"] else ("a", "b")
    out = [_load_map(gemm, v, p, "p", v["bm"], v["cq"]), _load_map(gemm, v, q, "q", v["bn"], v["q_parts"])]
    if v["store"] == "tma":
        box = (64, v["slab"]) if v["swap"] else (v["slab"], 64)
        spec = TensorMapSpec(
            element=_ELEMENT[gemm.out_dtype],
            extents=("n", "m"),
            pitch=f"ldd * {gemm.out.bytes}",
            box=box,
            swizzle=box[0] * gemm.out.bytes,
            l2_promotion=0,
        )
        out.append(Argument("tensor_map", "d", map=spec))
    else:
        out += [Argument("pointer", "d"), Argument("scalar", "ldd", "i64", "ldd")]
    out.append(Argument("scalar", "m", "i32", "m"))
    if gemm.epi.reads_c:
        out += [Argument("pointer", "c"), Argument("scalar", "ldc", "i64", "ldc")]
    out += [Argument("scalar", name, "f32") for name in gemm.epi.scalars]
    if gemm.epi.reads_bias:
        out.append(Argument("pointer", "bias"))
    if v["shares"]:
        out += [Argument("workspace"), Argument("counters")]
    return tuple(out)


def _load_map(gemm: Gemm, v: Mapping[str, Any], name: str, side: str, extent: int, parts: int) -> Argument:
    """A stage's tile of operand ``name``, in lines of 128 bytes, which the blocks that share it load in parts."""
    line, axis = LINE_BYTES // v["size"], {"a": "m", "b": "n"}[name]
    if v[f"{side}_rows_are_k"]:
        extents, box = (axis, "k"), (line, v["bk"] // parts)
    else:
        extents, box = ("k", axis), (line, extent // parts)
    return Argument(
        "tensor_map",
        name,
        map=TensorMapSpec(
            element=_ELEMENT[gemm.dtype],
            extents=extents,
            pitch=f"ld{name} * {v['size']}",
            box=box,
            swizzle=LINE_BYTES,
            l2_promotion=_L2_PROMOTION,
        ),
    )
