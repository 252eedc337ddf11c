"""The hopper family's derived quantities and rules, as expressions over its knobs, the problem and the GPU.

P and Q are the operands as wgmma sees them: A and B, or, swapped, B and A. A block's tile is ``bm`` along P by ``bn``
along Q.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemmtune.space.constraint import Constraint

STAGES = (2, 3, 4, 5, 6, 7, 8, 10, 12)
_CLUSTERS = {
    "1x1": (1, 1, 1), "2x1": (2, 1, 1), "1x2": (1, 2, 1), "4x1": (4, 1, 1), "1x4": (1, 4, 1),
    "1x1x2": (1, 1, 2), "1x1x4": (1, 1, 4), "1x1x8": (1, 1, 8),
    "2x1x2": (2, 1, 2), "1x2x2": (1, 2, 2), "2x1x4": (2, 1, 4), "1x2x4": (1, 2, 4), "4x1x2": (4, 1, 2),
    "1x4x2": (1, 4, 2), "2x2": (2, 2, 1), "4x2": (4, 2, 1), "2x4": (2, 4, 1),
}  # fmt: skip
CLUSTERS = tuple(_CLUSTERS)
"""Blocks of a cluster along P and Q, which load together what they share; a third number: along K.

Eight at most, as every GPU that knows clusters allows (CUDA C++ Programming Guide, Thread Block Clusters).
"""


def _blocks_along(axis: int) -> str:
    """An expression over ``cluster``: its blocks along P (0), Q (1) or K (2)."""
    cases = (f"{sizes[axis]} if cluster == '{name}' else " for name, sizes in _CLUSTERS.items() if sizes[axis] > 1)
    return f"{''.join(cases)}1"


LINE_BYTES = 128
"""The swizzle's width: operands lie in shared memory in lines of so many bytes."""

LAYOUT: Mapping[str, str] = {
    "size": "size_a",
    "a_rows_are_k": "1 if layout == 'tn' or layout == 'tt' else 0",
    "b_rows_are_k": "1 if layout == 'nn' or layout == 'tn' else 0",
    "p_rows_are_k": "b_rows_are_k if swap else a_rows_are_k",
    "q_rows_are_k": "a_rows_are_k if swap else b_rows_are_k",
    "cp": _blocks_along(0),
    "cq": _blocks_along(1),
    "ck": _blocks_along(2),
    "cluster_blocks": "cp * cq * ck",
    # Parts in which the blocks along P load the tile of Q that they share: whole units of 8 lines, the swizzle's.
    "q_parts": "cp if q_rows_are_k or bn % (8 * cp) == 0 else 3 if cp == 4 and bn % 24 == 0 else "
    "2 if cp == 4 and bn % 16 == 0 else 1",
    "threads": "128 * (warpgroups + 1)",
    "blocks_p": "bm // 64 if schedule == 'pingpong' else bm // (64 * warpgroups)",
    "rows": "bn if swap else bm",
    "columns": "bm if swap else bn",
    "cluster_rows": "rows * (cq if swap else cp)",
    "cluster_columns": "columns * (cp if swap else cq)",
    "p_bytes": "bm * bk * size",
    "q_bytes": "(round_up(bn, 128 // size) if q_rows_are_k else bn) * bk * size",
    "stage_bytes": "p_bytes + q_bytes",
    # The epilogue's buffer. Lines are rows of D. By TMA: two buffers of a warpgroup, swizzled as wide as a line.
    # Else: one of each warp, with 16 bytes between lines (fp32: 32) so that rows do not meet in a bank.
    "tma_line": "128 // size_d if swap == 0 and bn % (128 // size_d) == 0 else "
    "64 // size_d if swap == 0 and bn % (64 // size_d) == 0 else 16",
    "tma_slab": "(32 if bn % 32 == 0 else 16) if swap else tma_line",
    "shared_slab": "min(bn, 32 if swap else 128 // size_d)",
    "slab": "tma_slab if store == 'tma' else shared_slab if store == 'shared' else 0",
    "slab_pitch": "(128 if swap else slab * size_d) if store == 'tma' else "
    "(16 if swap else slab) * size_d + (32 if size_d == 4 and swap == 0 else 16)",
    "slab_bytes": "2 * (slab if swap else 64) * slab_pitch if store == 'tma' else "
    "4 * (slab if swap else 16) * slab_pitch if store == 'shared' else 0",
    # Where a cluster's blocks share K, the stages take each block's sums at last: lines are rows of D, and between them
    # is so much that what a warp writes meets in no bank (pairs of columns; swapped, single rows).
    "gather_pitch": "columns + (4 if swap else 8 if bn % 16 == 0 else 0)",
    "gather_bytes": "4 * rows * gather_pitch if ck > 1 else 0",
    "shared": "stages * stage_bytes + warpgroups * slab_bytes + round_up(8 * (2 * stages + 2) + 4 * warpgroups, 16)",
    # Registers: a kernel starts with the same for all its threads, and then the producer passes some on. With two
    # warpgroups in all, each thread may have the most there are without that.
    "reallocates": "0 if warpgroups == 1 and blocks == 1 else 1",
    "launch_registers": "65536 // (threads * blocks) // 8 * 8",
    "consumer_registers": "min(240, (launch_registers * threads - 128 * producer) // (128 * warpgroups) // 8 * 8) "
    "if reallocates else 255",
    "shares": "1 if splits > 1 or stream else 0",
    "k_tiles": "ceil_div(k, bk)",
}
"""Quantities of the kernel alone: what plan() and the template need, besides knobs and the problem's environment."""

BUDGET: Mapping[str, str] = {
    "size_p": "n if swap else m",
    "size_q": "m if swap else n",
    "down": "ceil_div(m, cluster_rows)",
    "across": "ceil_div(n, cluster_columns)",
    "tiles": "down * across",
    "resident": "sms * blocks // cluster_blocks",
    "room": "min(shared_per_block, shared_per_sm // blocks - 1024)",
    "fit": "(room - warpgroups * slab_bytes - 256) // stage_bytes",
    "k_steps": "max(2, ceil_div(k_tiles, splits * ck))",
    "most_stages": "min(fit, 12) if persistent else min(fit, min(k_steps, 12))",
    "accumulators": "blocks_p * bn // 2",
    # Beside the accumulators: addresses, descriptors and the epilogue, less where it goes straight to memory. A cluster
    # that adds up has 64 values a thread in flight, when it no longer needs the accumulators.
    "registers": "max(accumulators, 64) + 40 if ck > 1 else "
    "accumulators + (34 if store == 'direct' and swap == 0 else 40)",
}
"""What a thread and a block ask of the GPU."""

RULES: tuple[Constraint, ...] = (
    Constraint(
        "warpgroup_tiling",
        "schedule == 'pingpong' or bm % (64 * warpgroups) == 0",
        "{warpgroups} warpgroups that cooperate cannot share {bm} rows in blocks of 64",
    ),
    Constraint(
        "pingpong",
        "schedule == 'cooperative' or (warpgroups == 2 and persistent == 1)",
        "ping-pong needs two consumers, each with tiles of its own, and a persistent grid that brings several tiles: "
        "use warpgroups=2 persistent=1",
    ),
    Constraint(
        "tile_size",
        "(bm < 2 * size_p or bm == 64) and (bn < 2 * size_q or bn == 8) and (bk < 2 * k or bk * size == 128)",
        "a tile of {rows} x {columns} x {bk} is twice the problem's {m} x {n} x {k} in some direction: most is idle",
    ),
    Constraint(
        "tile_work",
        "bm * bn >= 8192 or tiles * cluster_blocks <= 16 * sms * blocks",
        "tiles of {rows} x {columns} are so small that {m} x {n} takes {tiles} of them, most of whose time is loading",
    ),
    Constraint(
        "registers",
        "registers <= consumer_registers",
        "{accumulators} accumulators take about {registers} registers a thread, but {blocks} blocks of {warpgroups} "
        "consumers leave {consumer_registers} each",
    ),
    Constraint(
        "instruction_registers",
        "bn // 2 + 26 <= launch_registers",
        "one instruction of {bn} columns takes {bn} // 2 registers and about 26 more, but {blocks} blocks of {threads} "
        "threads start with {launch_registers} each",
    ),
    Constraint(
        "reallocation",
        "producer == 24 or reallocates",
        "one consumer alone has all registers it can use: producer={producer} has no effect",
    ),
    Constraint(
        "shared_memory",
        "shared <= room",
        "{stages} stages of {stage_bytes} bytes and the epilogue's buffers need {shared} bytes of shared memory, but "
        "{blocks} blocks an SM of {gpu_name} leave {room} each",
    ),
    Constraint(
        "pipeline_depth",
        "stages <= max(2, most_stages) and stages + 2 >= most_stages",
        "{stages} stages are not within two of the {most_stages} that fit and that the {k_tiles} k tiles can fill",
    ),
    Constraint(
        "cluster",
        "(cp == 1 or size_p > bm * (cp - 1)) and (cq == 1 or size_q > bn * (cq - 1))",
        "a cluster of {cluster} tiles of {bm} x {bn} reaches past the problem",
    ),
    # A cluster lies in one GPC, and clusters of four leave some of its SMs idle in every turn.
    Constraint(
        "cluster_size",
        "cp * cq == 1 or cluster_blocks == 2 or tiles * cluster_blocks <= sms * blocks",
        "{cluster_blocks} blocks load together where all run at once, but {tiles} clusters of them do not fit on "
        "{gpu_name}: use two",
    ),
    Constraint(
        "cluster_k",
        "ck == 1 or (schedule == 'cooperative' and persistent == 0 and splits == 1 and stream == 0 and "
        "store == 'direct')",
        "the blocks of cluster={cluster} share the K of one tile, which they add up and store in their own way: use "
        "schedule=cooperative persistent=0 splits=1 stream=0 store=direct",
    ),
    Constraint(
        "cluster_k_depth",
        "ck == 1 or 2 * ck <= k_tiles",
        "K={k} has {k_tiles} k tiles of {bk}, too few for {ck} blocks of a cluster",
    ),
    Constraint(
        "cluster_k_work",
        "ck == 1 or tiles * cluster_blocks < 4 * sms * blocks",
        "{tiles} tiles of a cluster fill {gpu_name} so well that {ck} blocks for each part of K only add up more",
    ),
    Constraint(
        "cluster_k_room",
        "gather_bytes <= stages * stage_bytes",
        "the sums of a tile of {rows} x {columns} take {gather_bytes} bytes of shared memory, more than {stages} "
        "stages of {stage_bytes} have: use more stages or a smaller tile",
    ),
    Constraint(
        "occupancy",
        "blocks == 1 or (schedule == 'cooperative' and warpgroups <= 2)",
        "two blocks an SM, one of which multiplies while the other stores, are there instead of ping-pong or a third "
        "consumer: use schedule=cooperative, at most two of them",
    ),
    Constraint(
        "store",
        "store == 'direct' or (ldd * size_d % 16 == 0 and (store == 'shared' or (bn % 16 == 0 and "
        "(swap == 0 or size_d == 2))))",
        "store={store} moves 16 bytes at a time, and TMA in pieces of 16 columns, which a leading dimension of {ldd}, "
        "a tile of {bn} or a transposed fp32 output does not allow: use store=direct",
    ),
    # Measured on an H200: of a row, TMA writes every 16 bytes that begin inside D, whole. Refused whatever the leading
    # dimension, which a launch may choose.
    Constraint(
        "store_row",
        "store != 'tma' or n * size_d % 16 == 0",
        "store=tma writes whole 16 bytes, and a row of {n} columns of {size_d} bytes is no multiple of that: what lies "
        "beside D would be overwritten, so use store=shared or store=direct",
    ),
    Constraint(
        "raster",
        "(raster == 'rows' or (down > 1 and across > 1)) and "
        "(group == 1 or (down if raster == 'rows' else across) > (1 if group == 4 else group // 2))",
        "groups of {group} tile {raster} walk {down} x {across} tiles as smaller groups, or groups of rows, do",
    ),
    Constraint(
        "split_k",
        "splits == 1 or 2 * splits <= k_tiles",
        "K={k} has {k_tiles} k tiles of {bk}, too few for {splits} splits",
    ),
    Constraint(
        "split_work",
        "splits == 1 or tiles * (splits - 1) < 2 * resident",
        "{tiles} tiles fill {gpu_name} so well that {splits} splits of K only add traffic",
    ),
    Constraint(
        "stream_k",
        "stream == 0 or (persistent == 1 and splits == 1 and tiles % resident != 0 and tiles < 8 * resident "
        "and k_tiles >= 8)",
        "stream-K evens out a last turn of few tiles in a persistent grid without splits: {tiles} tiles of {k_tiles} k "
        "tiles in turns of {resident} gain nothing",
    ),
    Constraint(
        "persistent",
        "persistent == 0 or stream or tiles * splits > resident",
        "all {tiles} tiles run at once: no block has a second one to go on with",
    ),
    Constraint(
        "hints",
        "hints == 'none' or (hints == 'stream_b' and down == 1) or (hints == 'stream_a' and across == 1)",
        "{hints} lets the L2 forget an operand that {down} rows and {across} columns of tiles read again",
    ),
)
"""Every rule, with the sentence shown where it does not hold."""
