"""What each ailment costs: an SM's busy cycles for a block, pipe by pipe, as things are and as they would be without.

The cost of an ailment is the time of the model with it over the time without it: 2 is "about twice as fast without".
Like :mod:`gemmtune.space.estimate` it is a sum of first-order terms: the busiest pipe decides, the others overlap for
the most part, few warps cannot hide latency, and the SM with the most blocks ends last. Rates are those of the CUDA C++
Programming Guide, "Arithmetic Instructions" (throughput by compute capability).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from gemmtune.diagnose.facts import Facts
from gemmtune.diagnose.mix import CONVERSION, FMA, INTEGER, LOCAL, MOVE, PACKING, TENSOR
from gemmtune.space.estimate import LAUNCH_US, floor_us
from gemmtune.space.gpu import Gpu

OCCUPANCY, SPILLS, GLOBAL_MEMORY, BANK_CONFLICTS, INTEGER_WORK, WAVES = (
    "occupancy", "register spills", "global memory", "bank conflicts", "integer work", "waves",
)  # fmt: skip
AILMENTS = (OCCUPANCY, SPILLS, GLOBAL_MEMORY, BANK_CONFLICTS, INTEGER_WORK, WAVES)
"""In the order in which an engineer looks; the compute pipe itself is no ailment, but what one wants to be bound by."""
NOTABLE = 1.15
"""A cost below this is no ailment: the model is not finer than that."""

_OVERLAP = 0.15
"""Share of the other pipes' time that does not hide behind the busiest."""
_L2_BYTES = 48.0
"""What one SM draws from L2 in a clock, as in the estimate."""
_ENOUGH = {TENSOR: 16, FMA: 32}
"""Warps an SM beyond which more of them hardly help, by the unit that computes."""


@dataclass(frozen=True)
class Load:
    """Busy cycles of one SM for one block, by pipe."""

    pipes: dict[str, float]

    @property
    def busiest(self) -> str:
        """The pipe that decides."""
        return max(self.pipes, key=lambda name: self.pipes[name])

    @property
    def cycles(self) -> float:
        """All of it: the busiest pipe and what the others do not hide."""
        most = max(self.pipes.values())
        return most + _OVERLAP * (sum(self.pipes.values()) - most)


def unit_of(facts: Facts) -> str:
    """``tensor`` or ``fma``: what computes; without machine code, what the problem's inputs are made for."""
    if facts.mix is not None:
        return facts.mix.unit
    dtype = str(facts.subject.problem.environment().get("dtype", "fp32"))
    return FMA if dtype == "fp32" else TENSOR


def peak_flops(facts: Facts) -> float:
    """FLOP/s of the unit that computes, on the whole GPU."""
    gpu = facts.subject.gpu
    if unit_of(facts) == FMA:
        return gpu.peak["fp32"]
    dtype = str(facts.subject.problem.environment().get("dtype", ""))
    return gpu.peak.get(dtype, gpu.peak.get("fp16", gpu.peak["fp32"]))


def load(facts: Facts, cured: Collection[str] = ()) -> Load:
    """What one block asks of an SM's pipes, without the ailments named in ``cured``."""
    gpu = facts.subject.gpu
    per_clock = peak_flops(facts) / (gpu.sms * gpu.clock)
    pipes = {unit_of(facts): facts.block_flops / per_clock}
    mix = facts.mix
    if mix is not None:
        turns = facts.block_flops / mix.flops
        spare = mix.counts.get(INTEGER, 0) - mix.tidy_integer if INTEGER_WORK in cured else 0
        integer = mix.counts.get(INTEGER, 0) - spare
        wide = mix.wide_integer * integer / max(1, mix.counts.get(INTEGER, 0))
        fma = mix.counts.get(FMA, 0)
        half = _fma_rate(gpu) / 2 if _fma_rate(gpu) > 2 else _fma_rate(gpu)
        pipes["alu"] = turns * (integer - wide + mix.counts.get(PACKING, 0) + mix.counts.get(MOVE, 0) / 2) / 2
        pipes[FMA] = max(pipes.get(FMA, 0.0), turns * (fma / _fma_rate(gpu) + wide / half))
        pipes["conversion"] = turns * mix.counts.get(CONVERSION, 0) * 2
        local = 0 if SPILLS in cured else mix.counts.get(LOCAL, 0)
        pipes["local memory"] = turns * local * 4  # a word for each lane, in and out of L1 as four sectors
        pipes["issue"] = turns * (mix.total - spare - mix.counts.get(LOCAL, 0) + local) / 4
    shared = facts.accesses("shared")
    if shared is not None:
        pipes["shared memory"] = shared.ideal if BANK_CONFLICTS in cured else shared.transactions
    reached = facts.accesses("global")
    if reached is not None:
        sectors = reached.ideal if GLOBAL_MEMORY in cured else max(reached.transactions, reached.ideal)
        # L1 looks up one line of four sectors in a clock; sectors beyond the fewest possible lie in lines of their own.
        lines = max(reached.requests, reached.ideal / 4 + sectors - reached.ideal)
        pipes["global memory"] = max(lines, sectors * 32 / _L2_BYTES)
    return Load(pipes)


def seconds(facts: Facts, cured: Collection[str] = ()) -> float:
    """The model's time of the whole kernel, without the ailments named in ``cured``; infinite where no block fits."""
    gpu = facts.subject.gpu
    held = facts.fit[0]
    if not held:
        return math.inf
    if OCCUPANCY in cured:
        held = max(held, min(facts.unlimited, -(-_ENOUGH[unit_of(facts)] // facts.warps)))
    resident = min(held, -(-facts.blocks // gpu.sms))
    most = facts.blocks / gpu.sms if WAVES in cured else -(-facts.blocks // gpu.sms)
    return most * load(facts, cured).cycles / hidden(facts, resident) / gpu.clock


def hidden(facts: Facts, resident: int) -> float:
    """Fraction of the time that an SM with ``resident`` blocks has a warp ready (as in the estimate)."""
    warps = resident * facts.warps
    return warps / (warps + (2.0 if unit_of(facts) == TENSOR else 4.0))


def costs(facts: Facts) -> dict[str, float]:
    """What each ailment costs, at least 1 (it costs nothing); in :data:`AILMENTS` order."""
    now = seconds(facts)
    if math.isinf(now):
        return dict.fromkeys(AILMENTS, 1.0) | {OCCUPANCY: math.inf}
    return {ailment: max(1.0, now / seconds(facts, (ailment,))) for ailment in AILMENTS}


def most(facts: Facts) -> float:
    """How many times as fast it can become at most: no kernel takes less than its launch, or than the floor."""
    us, problem, gpu = facts.subject.us, facts.subject.problem, facts.subject.gpu
    now = LAUNCH_US + 1e6 * seconds(facts) if us is None else us
    return max(1.0, now / max(LAUNCH_US, floor_us(problem, gpu)))


def tail(facts: Facts) -> float:
    """How much longer the SM with the most blocks works than all would on average."""
    sms = facts.subject.gpu.sms
    return -(-facts.blocks // sms) * sms / facts.blocks


def _fma_rate(gpu: Gpu) -> float:
    """Warp instructions of fp32 multiply-adds that an SM issues in a clock: 2, or 4 on what has twice the units."""
    return max(1.0, round(gpu.peak["fp32"] / (gpu.sms * gpu.clock * 64)))
