"""What a configuration costs, estimated: roofline, wave quantisation, occupancy and pipeline depth.

The model serves two ends. Where no GPU is there, its microseconds rank configurations (always marked as estimates).
And its parts (occupancy, limiter, waves) explain a configuration to people. It is a sum of first-order terms,
not a simulator: the busiest SM decides (wave quantisation); the arithmetic pipe needs enough independent work to stay
busy; memory needs enough bytes in flight (Little's law); L2 serves what neighbouring tiles share; a launch has a fixed
cost.
Constants that are no datasheet value are named below, with where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gemmtune.space.configuration import Configuration
from gemmtune.space.family import Family, Traits
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem

LAUNCH_US = 2.0
"""From launch to the first instruction, and from the last to the end of the kernel, in a stream of launches."""
_LATENCY_S = 700e-9
"""A load from device memory under load (H100-class parts measure 600 to 800 ns)."""
_L2_BYTES_PER_CLOCK = 48.0
"""What one SM draws from L2 in a clock (64 is the port; 128x128 tiles at 700 TFLOP/s on an H200 draw about 45)."""
_BARRIER_S = 40e-9
"""One step of the main loop that is not hidden by another stage: barrier, address arithmetic, first load."""
_SHARED_PER_BLOCK = 1024
"""Shared memory that the driver reserves for each block from compute capability 8.0 on."""

# The ceilings that floor_us uses for the H200, fixed once for comparability (measured; see benchmarks/h200).
_H200_FLOPS = {"bf16": 790e12, "fp16": 790e12}
_H200_BANDWIDTH, _H200_READ_BANDWIDTH, _MOSTLY_READ = 4.3e12, 4.5e12, 0.9


@dataclass(frozen=True)
class Estimate:
    """The estimate and its parts.

    Times in microseconds: ``us`` the whole; ``compute_us``, ``memory_us`` and ``l2_us`` its three rooflines;
    ``floor_us`` what no kernel beats. ``blocks_per_sm`` fit at once, bounded by ``limiter`` (threads, registers,
    shared_memory or blocks); ``occupancy`` is the fraction of an SM's warps. ``waves`` = blocks over what the GPU holds
    at once; ``efficiency`` is the fraction of the pipe's peak while it computes. ``us`` is infinite where not one block
    fits.
    """

    us: float
    floor_us: float
    compute_us: float
    memory_us: float
    l2_us: float
    blocks: int
    blocks_per_sm: int
    limiter: str
    occupancy: float
    waves: float
    efficiency: float

    def to_json(self) -> dict[str, float | int | str]:
        """All fields by name."""
        return asdict(self)


def floor_us(problem: Problem, gpu: Gpu) -> float:
    """max(bytes / bandwidth, flops / rate) in microseconds.

    The H200 has fixed ceilings (790 TFLOP/s for bf16 and fp16; 4.3 TB/s, or 4.5 TB/s where reads exceed 90 % of the
    bytes); other GPUs and dtypes take the datasheet's peaks. A problem without an arithmetic peak on this GPU counts
    its bytes alone.
    """
    name = str(problem.environment().get("dtype", ""))
    rate, bandwidth = gpu.peak.get(name, math.inf), gpu.bandwidth
    if gpu.short == "h200":
        reads = sum(t.bytes for t in problem.tensors() if not t.output)
        bandwidth = _H200_READ_BANDWIDTH if reads > _MOSTLY_READ * problem.bytes else _H200_BANDWIDTH
        rate = _H200_FLOPS.get(name, rate)
    return 1e6 * max(problem.bytes / bandwidth, problem.flops / rate)


def blocks_per_sm(threads: int, shared_bytes: int, registers: int, gpu: Gpu) -> tuple[int, str]:
    """Blocks of a kernel that one SM holds at once, and what bounds them.

    Registers are allocated by the warp in units of 256 (CUDA C++ Programming Guide, technical specifications per
    compute capability; the same from 7.0 to 12.0).
    """
    warps = -(-threads // 32)
    reserved = _SHARED_PER_BLOCK if gpu.capability >= (8, 0) else 0
    registers_per_warp = -(-max(registers, 1) * 32 // 256) * 256
    limits = {
        "threads": gpu.threads_per_sm // (warps * 32),
        "registers": gpu.registers_per_sm // (registers_per_warp * warps),
        "shared_memory": gpu.shared_per_sm // max(shared_bytes + reserved, 1),
        "blocks": gpu.blocks_per_sm,
    }
    limiter = min(limits, key=lambda name: limits[name])
    return limits[limiter], limiter


def estimate(
    problem: Problem,
    configuration: Configuration,
    family: Family,
    gpu: Gpu,
    counters: Mapping[str, float] | None = None,
    registers: int | None = None,
) -> Estimate:
    """Estimate one valid configuration; the reduction is along the problem's axis k, where it has one.

    Args:
        problem: what is computed.
        configuration: one of ``family``, valid for ``problem`` on ``gpu``.
        family: gives the traits.
        gpu: where it would run.
        counters: what the emulator counted: ``bank_conflict_factor`` (shared-memory passes over the fewest possible)
            and ``sector_factor`` (global sectors moved over the fewest possible); 1 where missing.
        registers: registers a thread from the compiler's log, instead of the family's guess.
    """
    return estimate_traits(problem, family.traits(problem, configuration, gpu), gpu, counters, registers)


def estimate_traits(
    problem: Problem,
    traits: Traits,
    gpu: Gpu,
    counters: Mapping[str, float] | None = None,
    registers: int | None = None,
) -> Estimate:
    """The same where the traits are known but perhaps not the family, as in a worker process."""
    counted = dict(counters or {})
    conflicts = max(1.0, counted.get("bank_conflict_factor", 1.0))
    sectors = max(1.0, counted.get("sector_factor", 1.0))
    t = traits
    floor = floor_us(problem, gpu)
    held, limiter = blocks_per_sm(t.threads, t.shared_bytes, registers or t.registers, gpu)
    height, width = _output_shape(problem)
    rows, columns = -(-height // t.tile_m), -(-width // t.tile_n)
    blocks = rows * columns * t.splits
    if not held:
        return Estimate(math.inf, floor, math.inf, math.inf, math.inf, blocks, 0, limiter, 0.0, math.inf, 0.0)

    resident = min(held, -(-blocks // gpu.sms))
    steps = -(-max(t.padded_k, problem.axes.get("k", 1)) // (t.tile_k * t.splits))
    efficiency = _pipe_efficiency(t, resident, conflicts)
    compute = _compute_seconds(problem, t, gpu, blocks, steps, efficiency)
    element = max(x.dtype.bytes for x in problem.tensors() if not x.output)
    step_bytes = (t.tile_m + t.tile_n) * t.tile_k * element
    busy = min(blocks, gpu.sms) / gpu.sms
    memory = _dram_bytes(problem, t, gpu, (rows, columns), held, steps * step_bytes * t.splits) / (
        gpu.bandwidth * _in_flight(t, resident, step_bytes, gpu) * min(1.0, 2 * busy)
    )
    l2_rate = _L2_BYTES_PER_CLOCK * gpu.clock * gpu.sms * busy
    l2 = (blocks * steps * step_bytes * sectors + _split_bytes(problem, t)) / l2_rate
    exposed = steps * _BARRIER_S * -(-blocks // (gpu.sms * resident)) / max(1, t.stages - 1) / resident
    body = max(compute, memory, l2) + 0.15 * (compute + memory + l2 - max(compute, memory, l2)) + exposed
    fill = _LATENCY_S * -(-blocks // (gpu.sms * resident))  # the first tile of a block waits for its loads in full
    return Estimate(
        us=LAUNCH_US + 1e6 * (body + fill),
        floor_us=floor,
        compute_us=1e6 * compute,
        memory_us=1e6 * memory,
        l2_us=1e6 * l2,
        blocks=blocks,
        blocks_per_sm=held,
        limiter=limiter,
        occupancy=held * -(-t.threads // 32) * 32 / gpu.threads_per_sm,
        waves=blocks / (gpu.sms * held),
        efficiency=efficiency,
    )


def _pipe_efficiency(t: Traits, resident: int, conflicts: float) -> float:
    """Fraction of the arithmetic peak: the inner loop's own, less idle schedulers, less bank conflicts.

    An SM has four schedulers; each wants about two warps with tensor instructions, four with FMA, to cover latency
    (n / (n + half) reaches 0.8 there). Shared memory is busy about half of the time, so conflicts count half.
    """
    warps = resident * t.threads / 32
    half = 2.0 if t.unit == "tensor" else 4.0
    return t.efficiency * warps / (warps + half) / (1 + 0.5 * (conflicts - 1))


def _compute_seconds(problem: Problem, t: Traits, gpu: Gpu, blocks: int, steps: int, efficiency: float) -> float:
    """Time of the SM that gets the most blocks, each with its tile in full (also beyond the problem's edge)."""
    name = "fp32" if t.unit == "fma" else str(problem.environment()["dtype"])
    peak = gpu.peak.get(name, gpu.peak.get("fp16", gpu.peak["fp32"])) / gpu.sms
    flops = 2.0 * t.tile_m * t.tile_n * t.tile_k * steps
    return -(-blocks // gpu.sms) * flops / (peak * max(efficiency, 1e-3))


def _in_flight(t: Traits, resident: int, step_bytes: int, gpu: Gpu) -> float:
    """Fraction of the bandwidth that the bytes in flight can draw (Little's law), at most 0.92 of the datasheet."""
    wanted = _LATENCY_S * gpu.bandwidth / gpu.sms
    flying = resident * max(1, t.stages - 1) * step_bytes
    return 0.92 * min(1.0, flying / wanted)


def _dram_bytes(problem: Problem, t: Traits, gpu: Gpu, tiles: tuple[int, int], held: int, tile_bytes: int) -> float:
    """Bytes from device memory: once where the inputs stay in half of L2, else what each wave of tiles needs anew.

    A wave of w tiles is taken as a square of sqrt(w) x sqrt(w) tiles, which share their rows and columns through L2.
    """
    inputs = sum(x.bytes for x in problem.tensors() if not x.output)
    if inputs <= gpu.l2 / 2:
        return problem.bytes + _split_bytes(problem, t)
    wave = min(tiles[0] * tiles[1], gpu.sms * held)
    side = max(1.0, math.sqrt(wave))
    waves = tiles[0] * tiles[1] / wave
    shared = waves * tile_bytes * side
    return max(float(inputs), min(shared, tiles[0] * tiles[1] * float(tile_bytes))) + (problem.bytes - inputs)


def _split_bytes(problem: Problem, t: Traits) -> float:
    """Partial sums of a split K: fp32, written and read once each."""
    return 0.0 if t.splits == 1 else 8.0 * t.splits * math.prod(_output_shape(problem))


def _output_shape(problem: Problem) -> tuple[int, int]:
    return next(t.shape for t in problem.tensors() if t.output)
