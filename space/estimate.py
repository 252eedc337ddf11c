"""What a configuration costs, estimated: roofline, wave quantisation, occupancy and pipeline depth.

The model serves two ends. Where no GPU is there, its microseconds rank configurations (always marked as estimates).
And its parts (occupancy, limiter, waves) explain a configuration to people. It is a sum of first-order terms,
not a simulator: the busiest SM decides (wave quantisation); the arithmetic pipe needs enough independent work to stay
busy; each turn of the main loop waits for loads that too few stages have requested ahead; L2 serves what neighbouring
tiles share; a launch has a fixed cost.
Constants that are no datasheet value are the fields of :class:`Constants`, with where they come from.
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
_CLUSTERED = 0.9
"""Part of the SMs that clusters of four and more can have at once: 32 clusters of four take as long as in two turns."""
_SHARED_PER_BLOCK = 1024
"""Shared memory that the driver reserves for each block from compute capability 8.0 on."""


@dataclass(frozen=True)
class Constants:
    """What no datasheet says. Seconds, bytes and plain factors.

    The values are those that fit timed trials on an H200, rounded to what physics would let one guess: 1981 of simt and
    mma (benchmarks/h200/main-job.history.gz, twenty problems), and for what loads ahead those of hopper and skinny
    (benchmarks/h200/bf16.trials.csv.gz, 41 shapes of the suite). benchmarks/search/estimate.py fits them again,
    leaving one shape out at a time, and says how well they rank what they have not seen.
    """

    latency: float = 600e-9
    """From a load of a k tile to its use, where L2 or device memory answers (an idle H100-class part: 270 and 560)."""
    step: float = 50e-9
    """What no other stage hides of a step of the main loop: the barrier of all warps and the first fragments."""
    half_tensor: float = 1.0
    """Warps on an SM with which tensor instructions reach half of the pipe: one keeps two of its four parts going."""
    half_fma: float = 1.0
    """The same of FMAs. Tiles of a thread are many independent sums: few warps suffice."""
    spill: float = 0.16
    """Part of the arithmetic time that each 100 bytes of spills a thread add."""
    l2_bytes: float = 64.0
    """What one SM draws from L2 in a clock: the width of its port."""
    overlap: float = 0.4
    """How much of what is not the bottleneck shows all the same, 0 (perfect overlap) .. 1 (one after another)."""
    overlap_ahead: float = 0.13
    """The same where warps that only load run ahead (hopper), or each warp loads for itself (skinny)."""
    latency_ahead: float = 860e-9
    """``latency`` there, with all stages asked for at once: device memory is busy."""
    half_ahead: float = 0.7
    """``half_tensor`` there: an instruction of a whole warpgroup keeps the pipe busy for long."""
    handover: float = 2.5e-6
    """From one block's sums of a tile in device memory to the next block's that goes on with them (hopper)."""
    arrival: float = 1e-6
    """For the last block of a tile to see that it is the last, and to find the others' sums (skinny)."""
    gather: float = 1.1e-6
    """For the blocks of a cluster to meet and add up a tile, beside moving it."""
    cluster: float = 0.5e-6
    """What starting and ending as a cluster adds."""
    fill: float = 2e-6
    """What a round of blocks adds: the first tiles come from a cold device memory, the outputs go there at last. Not
    where loads run ahead."""


CALIBRATED = Constants()

# The ceilings that floor_us uses for the H200, fixed once for comparability (measured; see benchmarks/h200).
_H200_FLOPS = {"bf16": 790e12, "fp16": 790e12}
_H200_BANDWIDTH, _H200_READ_BANDWIDTH, _MOSTLY_READ = 4.3e12, 4.5e12, 0.9


@dataclass(frozen=True)
class Estimate:
    """The estimate and its parts.

    Times in microseconds: ``us`` the whole; ``compute_us``, ``memory_us``, ``l2_us`` and ``latency_us`` its four
    rooflines, the last that of loads one after another; ``floor_us`` the floor. ``blocks_per_sm`` fit at
    once, bounded by ``limiter`` (threads, registers, shared_memory or blocks); ``occupancy`` is the fraction of an SM's
    warps. ``waves`` = blocks over what the GPU holds at once; ``efficiency`` is the fraction of the pipe's peak while
    it computes. ``us`` is infinite where not one block fits.
    """

    us: float
    floor_us: float
    compute_us: float
    memory_us: float
    l2_us: float
    latency_us: float
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
    """max(bytes / bandwidth, flops / rate) in microseconds: what a kernel takes at the limit of the GPU under load.

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
    spill_bytes: int = 0,
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
        spill_bytes: bytes a thread spills, from the same log.
    """
    return estimate_traits(problem, family.traits(problem, configuration, gpu), gpu, counters, registers, spill_bytes)


def estimate_traits(
    problem: Problem,
    traits: Traits,
    gpu: Gpu,
    counters: Mapping[str, float] | None = None,
    registers: int | None = None,
    spill_bytes: int = 0,
    constants: Constants = CALIBRATED,
) -> Estimate:
    """The same where the traits are known but perhaps not the family, as in a worker process."""
    counted = dict(counters or {})
    conflicts = max(1.0, counted.get("bank_conflict_factor", 1.0))
    sectors = max(1.0, counted.get("sector_factor", 1.0))
    t, c = traits, constants
    floor = floor_us(problem, gpu)
    held, limiter = blocks_per_sm(t.threads, t.shared_bytes, registers or t.registers, gpu)
    height, width = _output_shape(problem)
    rows, columns = -(-height // t.tile_m), -(-width // t.tile_n)
    tiles = rows * columns
    blocks = tiles * t.splits
    if not held:
        never = math.inf
        return Estimate(never, floor, never, never, never, never, blocks, 0, limiter, 0.0, math.inf, 0.0)

    steps = whole = -(-max(t.padded_k, problem.axes.get("k", 1)) // (t.tile_k * t.splits))
    sms = _usable_sms(gpu, t.cluster)
    dealt = t.streamed and tiles % (sms * held) != 0
    if dealt:
        blocks = min(sms * held, tiles * steps)
        steps = -(-tiles * steps // blocks)
    resident = min(held, -(-blocks // sms))
    rounds = -(-blocks // (sms * resident))
    efficiency = _pipe_efficiency(t, resident, conflicts, spill_bytes, c)
    compute = _compute_seconds(problem, t, gpu, -(-blocks // sms), steps, efficiency)
    element = max(x.dtype.bytes for x in problem.tensors() if not x.output)
    step_bytes = (t.tile_m + t.tile_n) * t.tile_k * element
    busy = min(blocks, sms) / gpu.sms
    moved = _dram_bytes(problem, t, gpu, (rows, columns), held, whole * step_bytes * t.splits)
    # At most 0.92 of the datasheet's bandwidth; half of the SMs can draw it, or more where each warp loads for itself.
    reach = 2.0 if t.synchronous or t.ring else 1.5
    memory = moved / (0.92 * gpu.bandwidth * min(1.0, reach * busy))
    l2_rate = c.l2_bytes * gpu.clock * gpu.sms * busy
    l2 = (blocks * steps * step_bytes * sectors + _split_bytes(problem, t)) / l2_rate
    waits = rounds * steps * (c.latency if t.synchronous else c.latency_ahead)
    # A k tile is there a latency after it was asked for, and stages - 1 of them are asked for at a time. In a ring, a
    # stage comes round once in a latency and two steps, and in that time all of them do.
    ring = (waits + 2 * max(compute, memory, l2)) / t.stages
    latency = ring if t.ring else waits / max(1, t.stages - 1)
    parts = (compute, memory, l2, latency)
    shows = c.overlap if t.synchronous else c.overlap_ahead
    body = max(parts) + shows * (sum(parts) - max(parts))
    edges = rounds * (steps * c.step + c.fill) if t.synchronous else 0.0
    edges += _sharing_seconds(t, gpu, c, dealt=dealt)
    return Estimate(
        us=LAUNCH_US + 1e6 * (body + edges),
        floor_us=floor,
        compute_us=1e6 * compute,
        memory_us=1e6 * memory,
        l2_us=1e6 * l2,
        latency_us=1e6 * latency,
        blocks=blocks,
        blocks_per_sm=held,
        limiter=limiter,
        occupancy=held * -(-t.threads // 32) * 32 / gpu.threads_per_sm,
        waves=blocks / (gpu.sms * held),
        efficiency=efficiency,
    )


def _usable_sms(gpu: Gpu, cluster: int) -> int:
    """SMs that clusters of so many blocks can have at once: each lies in one GPC, whose SMs need not be a multiple."""
    return gpu.sms if cluster <= 2 else int(_CLUSTERED * gpu.sms / cluster) * cluster


def _sharing_seconds(t: Traits, gpu: Gpu, c: Constants, *, dealt: bool) -> float:
    """What it takes that several blocks work on a tile: on those of a cluster together, on others one after another.

    The blocks that share a tile add their sums in line, each through its SM's port: written and read. Those of a
    cluster do so all at once, each a part of the tile. Where k tiles are ``dealt`` out, a block has two begun tiles.
    """
    passed = 8.0 * t.tile_m * t.tile_n / (c.l2_bytes * gpu.clock)
    in_line = t.splits // t.gathered
    seconds = passed * in_line if t.splits > 1 else 0.0
    if in_line > 1 and not t.synchronous:  # once: who comes later has waited by then
        seconds += c.handover if t.ring else c.arrival
    if dealt:
        seconds += 2 * (passed + c.handover)
    if t.gathered > 1:
        seconds += c.gather
    return seconds + (c.cluster if t.cluster > 1 else 0.0)


def _pipe_efficiency(t: Traits, resident: int, conflicts: float, spill_bytes: int, c: Constants) -> float:
    """Fraction of the arithmetic peak: the inner loop's own, less idle schedulers, bank conflicts and spills.

    n warps reach n / (n + half). Shared memory is busy about half of the time, so conflicts count half.
    """
    warps = resident * t.threads / 32
    half = c.half_fma if t.unit != "tensor" else c.half_tensor if t.synchronous else c.half_ahead
    return t.efficiency * warps / (warps + half) / (1 + 0.5 * (conflicts - 1)) / (1 + c.spill * spill_bytes / 100)


def _compute_seconds(problem: Problem, t: Traits, gpu: Gpu, most: int, steps: int, efficiency: float) -> float:
    """Time of the SM that gets the most blocks, each with its tile in full (also beyond the problem's edge)."""
    name = "fp32" if t.unit == "fma" else str(problem.environment()["dtype"])
    peak = gpu.peak.get(name, gpu.peak.get("fp16", gpu.peak["fp32"])) / gpu.sms
    flops = 2.0 * t.tile_m * t.tile_n * t.tile_k * steps
    return most * flops / (peak * max(efficiency, 1e-3))


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
    """Partial sums of a split K: fp32, written and read once each; none where they stay on chip."""
    return 0.0 if t.splits == t.gathered else 8.0 * t.splits / t.gathered * math.prod(_output_shape(problem))


def _output_shape(problem: Problem) -> tuple[int, int]:
    return next(t.shape for t in problem.tensors() if t.output)
