"""From facts to a verdict: the engineer's checks in their order, ailments by what they cost, one sentence to act on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmtune.diagnose import model
from gemmtune.diagnose.facts import Facts, Traffic
from gemmtune.diagnose.mix import CONVERSION, INTEGER, TENSOR
from gemmtune.space.configuration import Configuration
from gemmtune.space.estimate import LAUNCH_US, floor_us
from gemmtune.space.families import FAMILIES

_SHALLOWEST = 16
"""K that a block should have at least where nothing else is known: a k tile of most kernels, or half of one."""
_WORDS = {"registers": "registers", "shared_memory": "shared memory", "threads": "threads", "blocks": "blocks"}


@dataclass(frozen=True)
class Check:
    """One step of the engineer's order: what was found, and what it costs as a factor of time.

    ``cost`` is None where that is unknown, or where there is nothing to cure.
    """

    name: str
    found: str
    cost: float | None = None


@dataclass(frozen=True)
class Ailment:
    """Something that holds the kernel back: its name in :data:`gemmtune.diagnose.model.AILMENTS`, and its cost."""

    name: str
    cost: float


@dataclass(frozen=True)
class Verdict:
    """All that diagnosis says of a kernel.

    ``ailments`` are the notable ones, the costliest first; ``bound_by`` the busiest pipe; ``advice`` one sentence.
    """

    facts: Facts
    checks: tuple[Check, ...]
    ailments: tuple[Ailment, ...]
    bound_by: str
    advice: str

    @property
    def first(self) -> str:
        """The name of the costliest ailment, or ``"none"``."""
        return self.ailments[0].name if self.ailments else "none"


def judge(facts: Facts) -> Verdict:
    """Look at everything in order and say what to try first."""
    costs = model.costs(facts)
    most = model.most(facts)
    ranked = sorted(costs, key=lambda name: -costs[name])  # before the bound, which would make equals of them
    costs = {name: min(cost, most) for name, cost in costs.items()}
    notable = [Ailment(name, costs[name]) for name in ranked if costs[name] >= model.NOTABLE]
    checks = (
        Check("occupancy", _occupancy(facts), max(costs[model.OCCUPANCY], costs[model.SPILLS])),
        Check("global memory", _global_memory(facts), costs[model.GLOBAL_MEMORY] if facts.traffic else None),
        Check("shared memory", _shared_memory(facts), costs[model.BANK_CONFLICTS] if facts.traffic else None),
        Check("compute pipe", _compute(facts)),
        Check("instruction mix", _mix(facts), costs[model.INTEGER_WORK] if facts.mix else None),
        Check("waves", _waves(facts), costs[model.WAVES]),
    )
    bound = _bound_by(facts)
    advice = _advice(facts, notable[0]) if notable else _BALANCED[bound].format(split=_shorter(facts))
    return Verdict(facts, checks, tuple(notable), bound, advice)


_IDLE = 0.3
"""A kernel that needs less than this part of its time for arithmetic or memory at the datasheet's peaks mostly waits.

Good kernels of ``mma.sync`` reach 0.33 to 0.45 on an H200 at the power cap (``benchmarks/h200/main-job.json``).
"""


# -------------------------------------------------------------------------------------------------- the checks


def _occupancy(facts: Facts) -> str:
    subject, (held, limiter) = facts.subject, facts.fit
    registers = "unknown registers" if subject.registers is None else f"{subject.registers} registers a thread"
    spills = f" ({subject.spill_bytes} bytes spilled)" if subject.spill_bytes else ""
    if not held:
        return f"{registers}{spills}, {facts.shared_bytes} bytes of shared memory a block: not one block fits an SM"
    achieved = facts.measured.get("sm__warps_active.avg.pct_of_peak_sustained_active")
    seen = f"; {achieved:.0f} % achieved" if achieved is not None else ""
    return (
        f"{registers}{spills}, {facts.shared_bytes} bytes of shared memory a block: {_blocks(held)} of {facts.threads} "
        f"threads an SM, {100 * facts.occupancy:.3g} % of its warps, bounded by {_WORDS[limiter]}{seen}"
    )


def _global_memory(facts: Facts) -> str:
    parts = []
    reads, writes = facts.traffic.get("global read"), facts.traffic.get("global write")
    if reads:
        parts.append(f"reads {_sectors(reads)}")
    if writes:
        parts.append(f"writes {_sectors(writes)}")
    if not facts.traffic:
        parts.append("sectors unknown")
    us, gpu = facts.subject.us, facts.subject.gpu
    dram = facts.measured.get("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed")
    if dram is not None:
        parts.append(f"device memory {dram:.0f} % busy")
    elif us is not None and not facts.subject.estimated:
        rate = facts.subject.problem.bytes / us * 1e6
        parts.append(f"at least {rate / 1e12:.2f} TB/s, {100 * rate / gpu.bandwidth:.0f} % of the datasheet's")
    return "; ".join(parts)


def _sectors(traffic: Traffic) -> str:
    ideal = traffic.ideal / traffic.requests
    return f"{traffic.per_request:.1f} sectors a request where {ideal:.1f} would do"


def _shared_memory(facts: Facts) -> str:
    shared = facts.accesses("shared")
    if shared is None:
        return "bank conflicts unknown"
    if not shared.requests:
        return "not used"
    parts = [
        f"{name} {traffic.factor:.1f}x the fewest passes"
        for name, space in (("reads", "shared read"), ("writes", "shared write"))
        if (traffic := facts.traffic.get(space)) and traffic.requests
    ]
    return "; ".join(parts)


def _compute(facts: Facts) -> str:
    unit = "tensor cores" if model.unit_of(facts) == TENSOR else "FMA units"
    us = facts.subject.us
    if us is None or facts.subject.estimated:
        load = model.load(facts)
        share = load.pipes[model.unit_of(facts)] / load.cycles
        busy = f"by the model busy {100 * min(1.0, share):.0f} % of the time that a warp is ready"
        return f"{unit}, achieved rate unknown; {busy}"
    rate = facts.subject.problem.flops / us * 1e6
    return f"{rate / 1e12:.1f} TFLOP/s, {100 * rate / model.peak_flops(facts):.0f} % of the {unit}' datasheet peak"


def _mix(facts: Facts) -> str:
    mix = facts.mix
    if mix is None:
        return "unknown"
    math_name = "tensor instruction" if mix.unit == TENSOR else "FMA"
    parts = [f"{count} {kind}" for kind, count in sorted(mix.counts.items(), key=lambda item: -item[1])]
    return f"{mix.integer_per_math:.1f} integer instructions for one {math_name}; the hot loop has {', '.join(parts)}"


def _waves(facts: Facts) -> str:
    sms, held = facts.subject.gpu.sms, facts.fit[0]
    if not held:
        return f"{_blocks(facts.blocks)}, none of which fits"
    if facts.blocks < sms:
        idle = sms - facts.blocks
        return f"{_blocks(facts.blocks)} for {sms} SMs: {idle} of them stand{'s' if idle == 1 else ''} idle"
    share = 100 / model.tail(facts)
    return (
        f"{_blocks(facts.blocks)} for {sms} SMs that hold {held} each, {facts.blocks / (sms * held):.1f} waves; the "
        f"SMs work {share:.0f} % of the time that the last one does"
    )


def _blocks(count: int) -> str:
    return f"{count:,} block{'' if count == 1 else 's'}"


# ------------------------------------------------------------------------------------------------- the sentence


def _bound_by(facts: Facts) -> str:
    """The busiest pipe, device memory where its bytes alone take longer, or launch or latency: whose the time is."""
    problem, gpu, us = facts.subject.problem, facts.subject.gpu, facts.subject.us
    if model.most(facts) < model.NOTABLE and floor_us(problem, gpu) < LAUNCH_US:
        return "launch"
    if us is not None and not facts.subject.estimated:
        busy = max(problem.flops / model.peak_flops(facts), problem.bytes / gpu.bandwidth)
        if busy * 1e6 < _IDLE * us:
            return "latency"
    if problem.bytes / gpu.bandwidth > model.seconds(facts):
        return "device memory"
    return model.load(facts).busiest


def _advice(facts: Facts, ailment: Ailment) -> str:
    gain = "" if math.isinf(ailment.cost) else f" (about {ailment.cost:.1f}x by the model)"
    return _SENTENCES[ailment.name](facts).format(gain=gain)


def _try_occupancy(facts: Facts) -> str:
    subject, (held, limiter) = facts.subject, facts.fit
    if not held:
        return (
            f"Not one block fits an SM of {subject.gpu.name}: use smaller tiles or fewer stages until its "
            f"{_WORDS[limiter]} suffice."
        )
    fewer = ""
    if limiter == "registers":
        most = subject.gpu.registers_per_sm // ((held + 1) * facts.warps * 32) // 8 * 8
        fewer = (
            f"keep fewer values in registers (at most {most} a thread would fit {_blocks(held + 1)}): a smaller tile "
            f"for each thread, one fragment buffer, or less unrolling"
        )
    elif limiter == "shared_memory":
        most = subject.gpu.shared_per_sm // (held + 1) - 1024
        fewer = f"use fewer stages or a shallower k tile (at most {most} bytes a block would fit {_blocks(held + 1)})"
    else:
        fewer = "use larger blocks"
    reason = f"{_WORDS[limiter]} leave an SM {_blocks(held)}, {held * facts.warps} warps, too few to hide latency"
    return f"{reason[0].upper()}{reason[1:]}: {fewer}{{gain}}."


def _try_spills(facts: Facts) -> str:
    return (
        f"Registers spill ({facts.subject.spill_bytes or 'some'} bytes) inside the hot loop: use a smaller tile for "
        f"each thread, less unrolling, or ask for fewer blocks an SM{{gain}}."
    )


def _try_global(facts: Facts) -> str:
    worst = max(("global read", "global write"), key=lambda s: _surplus(facts, s))
    traffic, word = facts.traffic[worst], worst.partition(" ")[2]
    return (
        f"Global {word}s are not coalesced ({_sectors(traffic)}): let the lanes of a warp {word} neighbouring elements "
        f"of a row, as wide as alignment allows{{gain}}."
    )


def _try_conflicts(facts: Facts) -> str:
    worst = max(("shared read", "shared write"), key=lambda s: _surplus(facts, s))
    traffic, word = facts.traffic[worst], worst.partition(" ")[2]
    return (
        f"Shared-memory {word}s meet in the same banks ({traffic.factor:.1f}x the fewest passes): pad each row of the "
        f"tile by one access, or swizzle it{{gain}}."
    )


def _surplus(facts: Facts, space: str) -> float:
    traffic = facts.traffic.get(space)
    return traffic.transactions - traffic.ideal if traffic else -math.inf


def _try_integer(facts: Facts) -> str:
    mix = facts.mix
    per = mix.integer_per_math if mix else 0.0
    unit = "tensor instruction" if mix and mix.unit == TENSOR else "FMA"
    also = " and conversions" if mix and mix.counts.get(CONVERSION, 0) * 4 > mix.counts.get(INTEGER, 0) else ""
    return (
        f"Integer work{also} crowds out the arithmetic ({per:.1f} integer instructions for one {unit}): move the "
        f"address arithmetic, above all divisions and remainders, out of the inner loop, or let compile-time "
        f"constants fold it{{gain}}."
    )


def _try_waves(facts: Facts) -> str:
    sms, splits = facts.subject.gpu.sms, _splits(facts)
    if facts.blocks < sms:
        ways = ["use smaller tiles"] if _smaller(facts) else []
        ways += [f"split K between about {splits} blocks"] if splits else []
        return (
            f"{_blocks(facts.blocks)} leave{'s' if facts.blocks == 1 else ''} {sms - facts.blocks} of {sms} SMs idle: "
            + (
                f"{', or '.join(ways)}{{gain}}."
                if ways
                else "the product is too small for more, so do more in one launch."
            )
        )
    return (
        f"The last of {facts.blocks / (sms * facts.fit[0]):.1f} waves is nearly empty ({_blocks(facts.blocks)} for "
        f"{sms} SMs): choose tiles whose number is just below a multiple of {sms}{', or split K' if splits else ''}"
        f"{{gain}}."
    )


def _smaller(facts: Facts) -> bool:
    """Whether the family has smaller tiles than the kernel's; of one that is not ours, or has no such knobs, yes."""
    subject = facts.subject
    configuration, family = subject.source.configuration, FAMILIES.get(subject.source.configuration.family)
    if family is None or family.unsupported(subject.problem, subject.gpu) is not None:
        return True
    sides = [p for p in family.parameters(subject.problem, subject.gpu) if p.name in ("bm", "bn")]
    return len(sides) < 2 or any(configuration.get(p.name) != min(p.values, key=int) for p in sides)


def _splits(facts: Facts) -> int:
    """Blocks that can share K and still find an SM each; 0 where the family's knob or its rules offer no more of them.

    Of a family that is not ours nothing is known but K itself.
    """
    subject, wanted = facts.subject, max(2, facts.subject.gpu.sms // facts.blocks)
    configuration, family = subject.source.configuration, FAMILIES.get(subject.source.configuration.family)
    if family is None:
        fits = min(wanted, subject.problem.axes.get("k", 0) // _SHALLOWEST)
        return fits if fits >= 2 else 0
    now = configuration.get("splits")
    if not isinstance(now, int) or family.unsupported(subject.problem, subject.gpu) is not None:
        return 0
    knob = next(p for p in family.parameters(subject.problem, subject.gpu) if p.name == "splits")
    return max(
        (
            splits
            for splits in knob.values
            if isinstance(splits, int)
            and now < splits <= now * wanted
            and not family.why_invalid(
                subject.problem, Configuration.of(family.name, {**configuration, "splits": splits}), subject.gpu
            )
        ),
        default=0,
    )


def _shorter(facts: Facts) -> str:
    """The part of a sentence that advises to split K, where that can be."""
    fewer = "give each block fewer k tiles one after another (split K, or a cluster along it), "
    return fewer if _splits(facts) else ""


_SENTENCES = {
    model.OCCUPANCY: _try_occupancy,
    model.SPILLS: _try_spills,
    model.GLOBAL_MEMORY: _try_global,
    model.BANK_CONFLICTS: _try_conflicts,
    model.INTEGER_WORK: _try_integer,
    model.WAVES: _try_waves,
}


_BALANCED = {
    "launch": "Nothing stands out, but a launch alone takes about as long as this: do more in one (batch the products, "
    "fuse what follows), or replay a CUDA graph.",
    "latency": "Nothing stands out, but for most of the time neither arithmetic nor device memory is at work: it goes "
    "into the launch, the first tiles and the last ones, so {split}give more SMs a tile, overlap launches, or do more "
    "in one.",
    "device memory": "Device memory alone takes longer than everything else: move fewer bytes (a narrower dtype, a "
    "fused epilogue), or keep more of them in flight with deeper stages.",
    "tensor": "Nothing stands out and the tensor cores are the busiest pipe, as they should be: deeper stages, other "
    "tile sizes and raster groups are what is left to try.",
    "fma": "Nothing stands out and the FMA units are the busiest pipe, as they should be: other tile sizes, deeper "
    "prefetching, or tensor cores (tf32) where their precision will do.",
    "shared memory": "Nothing stands out, but shared memory is busier than the arithmetic: give each thread or warp a "
    "larger tile, or read wider, so that each value read is used more often.",
    "global memory": "Nothing stands out, but requests to L1 and L2 take longer than the arithmetic: use larger tiles, "
    "or wider loads, so that fewer requests bring the same bytes.",
    "issue": "Nothing stands out, but the schedulers issue all the time: wider loads and larger tiles for each thread "
    "do the same arithmetic in fewer instructions.",
    "alu": "Nothing stands out, but the integer pipe is the busiest: advance addresses by constants, and unroll more.",
    "conversion": "Nothing stands out, but conversions are the busiest pipe: convert once, on the way into shared "
    "memory.",
    "local memory": "Nothing stands out, but local memory is the busiest pipe: avoid spills, and arrays indexed at "
    "run time.",
}
