"""A mistake in a Hopper kernel does not pass: each kind is planted in a right one, and found with its kind and line."""

from __future__ import annotations

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, EmulationFault, KernelLibrary, Schedule, launch
from gemmtune.device.emulator.tensor_map import encode
from gemmtune.space.tensor_map import BoundMap

TEXT = (Path(__file__).parent / "kernels" / "hopper_gemm.cu").read_text()
M, N, K = 400, 100, 200
DOWN, ACROSS, K_TILES = 2, 2, 4
SHARED = 3 * (16384 + 8192) + 2 * 8192 + 48
BF16 = np.dtype(ml_dtypes.bfloat16)


def run(text: str, schedule: Schedule, *, shared: int = SHARED, race_checks: bool = True, clusters: int = 1) -> None:
    """Launch the kernel on ragged operands and compare all it wrote.

    Raises:
        EmulationFault: what the emulator found; of kind "wrong" where only the numbers tell.
    """
    rng = np.random.default_rng(0)
    pitch_k, pitch_n = 208, 112
    a, b = (rng.standard_normal((rows, K)).astype(BF16) for rows in (M, N))
    library = KernelLibrary(build_kernel(text, "hopper_gemm"))
    sizes = {"a": (M, pitch_k), "b": (N, pitch_k), "d": (M, pitch_n)}
    buffers = {
        name: Buffer(name, rows * pitch * 2, at_end=schedule.at_end, writable=name == "d")
        for name, (rows, pitch) in sizes.items()
    }
    try:
        for name, array in (("a", a), ("b", b)):
            buffers[name].view(BF16).reshape(sizes[name])[:, :K] = array
        maps = [
            encode(BoundMap("bf16", (inner, sizes[name][0]), sizes[name][1] * 2, box, 128, 256), buffers[name].address)
            for name, inner, box in (("a", K, (64, 128)), ("b", K, (64, 32)), ("d", N, (64, 64)))
        ]
        launch(
            library, grid=(2 * clusters, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1), buffers=list(buffers.values()),
            arguments=[*maps, *(ctypes.c_int32(v) for v in (DOWN, ACROSS, K_TILES))], dynamic_shared=shared,
            schedule=schedule, race_checks=race_checks, budget=40_000_000,
        )  # fmt: skip
        out = buffers["d"].view(BF16).reshape(sizes["d"])
        wanted = a.astype(np.float64) @ b.astype(np.float64).T
        if not np.allclose(out[:, :N].astype(np.float64), wanted, rtol=1e-2, atol=1e-2 * K**0.5):
            raise EmulationFault("wrong", "the numbers are wrong")
        bits = buffers["d"].view(np.dtype(np.uint16)).reshape(sizes["d"])
        whole = -(-N // 8) * 8  # TMA writes the last 16 bytes of a row whole: there products with rows that b lacks
        assert (bits[:, N:whole] == 0).all()
        assert (bits[:, whole:] == 0xFFFF).all()
    finally:
        for buffer in buffers.values():
            buffer.free()
        library.close()


@pytest.mark.parametrize("clusters", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_right_kernel_is_right(schedule: Schedule, clusters: int) -> None:
    run(TEXT, schedule, clusters=clusters)
    run(TEXT, schedule, clusters=clusters, race_checks=False)


WAIT = "        hw::wgmma_wait<0>();\n"
RELEASE = "        if (lane < 2) hw::mbarrier_arrive_cluster(empty + stage, lane);\n"
LAST_SYNC = "  }\n  hw::cluster_sync();\n}"
FAULTS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    # name: what is replaced, by what, kinds of which the fault is one, words of its message
    "the producer waits for the wrong parity": ("phase ^ 1);", "phase);", ("deadlock",), "mbarrier_wait"),
    "the consumer waits for the wrong parity": ("full + stage, phase);", "full + stage, phase ^ 1);", ("race",), "TMA"),
    "nobody waits for a full stage": (
        "        hw::mbarrier_wait(full + stage, phase);\n",
        "",
        ("race",),
        "may still be writing it",
    ),
    "nobody waits for an empty stage": (
        "          hw::mbarrier_wait(empty + stage, phase ^ 1);\n",
        "",
        ("race", "protocol"),
        "",
    ),
    "a stage is released before its wgmma is done": (WAIT + RELEASE, RELEASE + WAIT, ("race",), "TMA load"),
    "a stage is released to its own block alone": ("if (lane < 2)", "if (lane == rank)", ("deadlock",), "parity"),
    "a stage is released twice": (RELEASE, RELEASE * 2, ("protocol", "race"), ""),
    "too few bytes are expected": (
        "full + stage, STAGE_BYTES)",
        "full + stage, A_BYTES)",
        ("protocol", "deadlock"),
        "too few bytes",
    ),
    "too many bytes are expected": ("full + stage, STAGE_BYTES)", "full + stage, STAGE_BYTES + 16)", ("deadlock",), ""),
    "bytes are not announced": (
        "hw::mbarrier_expect(full + stage, STAGE_BYTES)",
        "hw::mbarrier_arrive(full + stage)",
        ("protocol", "race"),
        "",
    ),
    "no fence follows the initialisation": (
        "    hw::mbarrier_fence_init();\n",
        "",
        ("protocol",),
        "mbarrier_fence_init",
    ),
    "no barrier follows the initialisation": (
        "  hw::cluster_sync();\n  if (warp >= 8)",
        "  if (warp >= 8)",
        ("race", "protocol"),
        "initialised",
    ),
    "a block barrier follows, but none of the cluster": (
        "  hw::cluster_sync();\n  if (warp >= 8)",
        "  hw::sync_block();\n  if (warp >= 8)",
        ("race", "protocol"),
        "initialised",
    ),
    "a block ends before its peer is done with it": (LAST_SYNC, "  }\n}", ("protocol",), "which has ended"),
    "no proxy fence before a TMA store": ("      hw::fence_proxy_async();\n", "", ("race",), "no fence_proxy_async"),
    "no barrier before a TMA store": (
        "      hw::named_barrier(1 + consumer, 128);\n      if (threadIdx.x % 128 == 0) {",
        "      if (threadIdx.x % 128 == 0) {",
        ("race",),
        "no barrier between",
    ),
    "a slab is written while a TMA store reads it": (
        "      if (threadIdx.x % 128 == 0) hw::tma_store_wait_read<0>();\n",
        "",
        ("race",),
        "may still read it",
    ),
    "a block ends before its TMA stores have read": (
        "    if (threadIdx.x % 128 == 0) hw::tma_store_wait_read<0>();\n  }",
        "  }",
        ("protocol",),
        "TMA store",
    ),
    "TMA stores are not committed": ("        hw::tma_store_commit();\n", "", ("protocol", "race"), ""),
    "a TMA store starts left of the tensor": (
        "&d, slab, tile % across * BN,",
        "&d, slab, tile % across * BN - 8,",
        ("invalid",),
        "starts before the tensor, at (-8, 0)",
    ),
    "a TMA store starts above the tensor": (
        "(tile / across * 2 + rank) * BM + consumer * 64);",
        "(tile / across * 2 + rank) * BM + consumer * 64 - 1);",
        ("invalid",),
        "starts before the tensor, at (0, -1)",
    ),
    "accumulators are read before the wait": (
        WAIT,
        "        acc[0] += 1.0f;\n" + WAIT,
        ("protocol",),
        "before wgmma_wait",
    ),
    "nobody waits for wgmma": (WAIT, "", ("protocol", "race"), ""),
    "wgmma is not committed": ("        hw::wgmma_commit();\n", "", ("protocol", "race"), ""),
    "no wgmma fence": ("        hw::wgmma_fence();\n", "", ("protocol",), "wgmma_fence"),
    "warps differ in their descriptors": ("consumer * 8192, 16", "warp * 2048, 16", ("divergence", "race"), ""),
    "a descriptor's stride is wrong": (
        "consumer * 8192, 16, 1024",
        "consumer * 8192, 16, 512",
        ("invalid",),
        "strides",
    ),
    "a descriptor is advanced too far": ("from_a, step * 32", "from_a, step * 48", ("wrong", "race"), ""),
    "a descriptor leaves shared memory": (
        "A_BYTES, 16, 1024",
        "A_BYTES, 16, 65536",
        ("out_of_bounds",),
        "wgmma operand",
    ),
    "the first product is added to what was there": ("k + step > 0", "true", ("wrong",), ""),
    "consumers ask for more registers than there are": ("_more<232>", "_more<240>", ("deadlock",), "registers_more"),
    "the producer keeps its registers": ("    hw::registers_fewer<40>();\n", "", ("deadlock",), "registers_more"),
    "a warpgroup asks for fewer registers with more": ("_more<232>", "_more<64>", ("invalid",), "registers"),
    "one warp moves registers": (
        "    hw::registers_fewer<40>();\n",
        "    if (warp == 8) hw::registers_fewer<40>();\n",
        ("deadlock",),
        "registers",
    ),
    "a named barrier waits for too many": (
        "hw::named_barrier(1 + consumer, 128)",
        "hw::named_barrier(1 + consumer, 160)",
        ("deadlock", "divergence"),
        "named barrier",
    ),
    "a named barrier is passed by half a warp": (
        "      hw::fence_proxy_async();\n      hw::named_barrier(1 + consumer, 128)",
        "      hw::fence_proxy_async();\n      if (lane < 16) hw::named_barrier(1 + consumer, 64)",
        ("divergence",),
        "whole warps",
    ),
    "the block barrier is used by name": (
        "hw::named_barrier(1 + consumer, 128)",
        "hw::named_barrier(0, 128)",
        ("invalid",),
        "",
    ),
    "a multicast names a block that is not there": ("full + stage, 3)", "full + stage, 7)", ("invalid",), "mask 7"),
    "a multicast goes to its own block alone": (
        "full + stage, 3)",
        "full + stage, (u16)(1 << rank))",
        ("deadlock",),
        "mbarrier_wait",
    ),
    "an L2 policy is none": ("hw::policy_evict_first()", "(u64)1", ("invalid",), "policy"),
    "a tensor map is none": (
        "&a, k * BK",
        "reinterpret_cast<const hw::TensorMap*>(shared), k * BK",
        ("invalid",),
        "no tensor map",
    ),
    "stages are off their alignment": (
        "unsigned char* to = shared + stage",
        "unsigned char* to = shared + 128 + stage",
        ("misaligned",),
        "128-byte swizzle",
    ),
    "an mbarrier is overwritten": (
        "    hw::registers_more<232>();\n",
        "    hw::registers_more<232>();\n    if (threadIdx.x == 0) hw::sts(empty, (u64)0);\n",
        ("protocol",),
        "overwritten",
    ),
    "an mbarrier is initialised twice": (
        "hw::mbarrier_init(full + i, 1);",
        "hw::mbarrier_init(full, 1);",
        ("protocol",),
        "is one already",
    ),
    "the cluster barrier is arrived at twice": (
        LAST_SYNC,
        "  }\n  hw::cluster_arrive();\n  hw::cluster_sync();\n}",
        ("divergence",),
        "second time",
    ),
    "the cluster barrier is waited at without arriving": (
        LAST_SYNC,
        "  }\n  hw::cluster_wait();\n}",
        ("divergence",),
        "without having arrived",
    ),
}


def planted(name: str) -> str:
    old, new, _, _ = FAULTS[name]
    assert old in TEXT, name
    return TEXT.replace(old, new)


def found(text: str, *, race_checks: bool) -> list[EmulationFault]:
    """What each schedule finds, those that find nothing left out."""
    out = []
    for schedule in SCHEDULES:
        try:
            run(text, schedule, race_checks=race_checks)
        except EmulationFault as fault:
            out.append(fault)
    return out


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_found(name: str) -> None:
    _, _, kinds, words = FAULTS[name]
    faults = found(planted(name), race_checks=True)
    assert faults, "no schedule found it"
    assert {fault.kind for fault in faults} <= {*kinds, "wrong"}
    assert any(fault.kind in kinds and words in str(fault) for fault in faults), [str(fault) for fault in faults]


NUMBERS = (
    "the consumer waits for the wrong parity",
    "nobody waits for a full stage",
    "nobody waits for an empty stage",
    "a stage is released before its wgmma is done",
    "a slab is written while a TMA store reads it",
    "nobody waits for wgmma",
)


@pytest.mark.parametrize("name", NUMBERS)
def test_what_spoils_data_shows_in_the_numbers_or_in_the_protocol_without_race_checks(name: str) -> None:
    assert found(planted(name), race_checks=False), "no schedule found it"


def test_a_stage_past_the_end_of_shared_memory_is_out_of_bounds() -> None:
    with pytest.raises(EmulationFault) as caught:
        run(TEXT, SCHEDULES[0], shared=SHARED - 48 - 16384 - 4096)
    assert caught.value.kind == "out_of_bounds"


def test_a_grid_that_is_no_multiple_of_the_cluster_is_refused() -> None:
    library = KernelLibrary(build_kernel(TEXT, "hopper_gemm"))
    with pytest.raises(EmulationFault, match="no multiple of the cluster"):
        launch(library, grid=(3, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1), arguments=[])
    library.close()
