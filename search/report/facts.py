"""The figures and sentences of the page: headline, circumstances, leaders, failures, the winner's kernel and source."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemmtune.db.records import Timing, TrialRecord
from gemmtune.db.store import failure_pattern
from gemmtune.search.report.material import Material, is_correct, shared_knobs
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.estimate import Estimate, estimate_traits, floor_us

Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Source:
    """CUDA source as HTML, and the style sheet that colours it, light and dark."""

    html: str
    css: str


@dataclass(frozen=True)
class Leader:
    """One row of the table of leading kernels."""

    place: int
    trial: TrialRecord
    us: str
    interval: str
    ratio: str
    tflops: str
    registers: str
    final: bool


@dataclass(frozen=True)
class Failure:
    """Trials that failed alike: how, why in the words of the first of them, how many, and that one."""

    outcome: str
    why: str
    count: int
    example: TrialRecord


def headline(material: Material) -> Facts:
    """What one wants to know first, as (figure, what it is)."""
    study, winner = material.study, material.winner
    correct = sum(map(is_correct, material.trials))
    out: Facts = []
    if winner is not None and (timing := winner.timing) is not None:
        out.append((f"{digits(timing.us)} us", "estimated time" if timing.estimated else "best time"))
        if timing.ratio is not None:
            out.append((f"{timing.ratio:.3f}x", f"speed, {winner.baseline or 'baseline'} = 1"))
        if (problem := material.problem) is not None and problem.flops:
            out.append((f"{digits(problem.flops / timing.us / 1e6)}", "TFLOP/s"))
            out.append(
                (f"{digits(100 * floor_us(problem, study.gpu) / timing.us, 2)} %", "of what the GPU could do at best")
            )
    out.append((f"{len(material.trials):,}", "trials"))
    out.append((f"{correct:,}", "of them right"))
    return out


def circumstances(material: Material) -> Facts:
    """For what, where and how the study ran."""
    study = material.study
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.created))
    ends = [t.finished for t in material.trials if t.finished is not None]
    starts = [t.started for t in material.trials]
    wall = f", {max(ends) - min(starts):.0f} s from the first to the last" if ends and starts else ""
    return [
        ("problem", study.problem_key),
        (
            "GPU",
            f"{study.gpu.name}, {study.gpu.sms} SMs, compute capability {'.'.join(map(str, study.gpu.capability))}",
        ),
        ("timed", f"{study.kind}, {study.regime} clocks, {study.cache} cache"),
        ("search", f"{study.strategy}, seed {study.seed}, families {', '.join(study.families)}"),
        ("begun", f"{begun}{wall}"),
        ("environment", ", ".join(f"{name} {value}" for name, value in study.environment.items()) or "-"),
        ("study", f"{study.id}, uuid {study.uuid}"),
    ]


def leaders(material: Material, count: int) -> list[Leader]:
    """The first ``count`` of the ranking."""
    out = []
    for place, trial in enumerate(material.ranking[:count], 1):
        timing = trial.timing
        if timing is None:
            continue
        flops = material.problem.flops if material.problem else 0
        out.append(
            Leader(
                place, trial, digits(timing.us), interval(timing),
                "-" if timing.ratio is None else f"{timing.ratio:.3f}x",
                f"{digits(flops / timing.us / 1e6)}" if flops else "-",
                "-" if trial.registers is None else str(trial.registers), timing.final,
            )
        )  # fmt: skip
    return out


def failures(material: Material) -> list[Failure]:
    """What went wrong or was cut short, by outcome and kind of detail, the most frequent first."""
    failed = [t for t in material.trials if not is_correct(t)]
    kinds = Counter((t.outcome, failure_pattern(t.detail)) for t in failed)
    first: dict[tuple[str, str], TrialRecord] = {}
    for trial in failed:
        first.setdefault((trial.outcome, failure_pattern(trial.detail)), trial)
    return [
        Failure(kind[0].replace("_", " "), " ".join(first[kind].detail.split())[:400], n, first[kind])
        for kind, n in kinds.most_common()
    ]


def winner_facts(material: Material) -> Facts:
    """The winner's times, proof and resources; empty where there is no winner."""
    winner = material.winner
    if winner is None:
        return []
    out: Facts = [("trial", f"{winner.id}, number {winner.number} of study {winner.study_id}; uuid {winner.uuid}")]
    out += [
        ("knobs", ", ".join(f"{name} {value}" for name, value in Configuration.parse(winner.configuration).items()))
    ]
    if (timing := winner.timing) is not None:
        out.append(("time", f"{digits(timing.us)} us{_said(timing)}"))
    out += _conditions(material)
    if (proof := material.proof) is not None:
        verdict = "right" if proof.passed else "wrong"
        out.append(
            (
                "proof",
                f"{verdict}: error {proof.rel_error:.1e} of a bound of {proof.error_bound:.1e}; worst element at "
                f"{digits(proof.excess)} of what it may be off; {100 * proof.coverage:.3g} % of the output compared in "
                f"{len(proof.checks)} checks",
            )
        )
    counted = [
        (winner.registers, "registers a thread"), (winner.spill_bytes, "bytes spilled"),
        (winner.stack_bytes, "bytes of stack"), (winner.shared_bytes, "bytes of shared memory a block"),
    ]  # fmt: skip
    resources = ", ".join(f"{value:,} {what}" for value, what in counted if value is not None)
    out.append(("resources", resources or "unknown"))
    if (estimate := _estimate(material)) is not None:
        out.append(
            (
                "on an SM",
                f"{estimate.blocks_per_sm} of {estimate.blocks:,} blocks at once, bounded by "
                f"{estimate.limiter.replace('_', ' ')}; {100 * estimate.occupancy:.0f} % of its warps; "
                f"{estimate.waves:.2f} waves over the GPU",
            )
        )
    if winner.recipe is not None:
        parts = [f"{name} {_triple(winner.recipe.get(name))}" for name in ("block", "cluster", "grid")]
        out.append(("launch", ", ".join(parts)))
        out.append(("kernel", f"{winner.recipe.get('entry')} for {winner.arch}, NVRTC {winner.nvrtc or '-'}"))
    out.append(("cubin", winner.cubin_sha256 or "none"))
    return out


def _said(timing: Timing) -> str:
    if timing.estimated:
        return ", estimated"
    said = "" if timing.us_low == timing.us_high else f" ({interval(timing)} in 95 %)"
    if timing.ratio is not None and timing.baseline_us is not None:
        span = (
            ""
            if not timing.ratio_low or not timing.ratio_high
            else f" ({timing.ratio_low:.3f}-{timing.ratio_high:.3f})"
        )
        said += f"; {timing.ratio:.3f}x the baseline{span}, which took {digits(timing.baseline_us)} us"
    return f"{said}; measured {'side by side with the other finalists' if timing.final else 'in the search'}"


def _conditions(material: Material) -> Facts:
    """Samples and clocks of the measurement that counts, which is the last one made in its way."""
    winner = material.winner
    final = bool(winner and winner.timing and winner.timing.final)
    taken = [one.data for one in material.measurements if one.final == final]
    if not taken or not taken[-1].samples:
        return []
    data = taken[-1]
    clock = f" at {data.clock_mhz:.0f} MHz" if data.clock_mhz else ""
    throttled = f", throttled by {data.throttle}" if data.throttle else ""
    return [("samples", f"{len(data.samples)}{clock}{throttled}")]


def _estimate(material: Material) -> Estimate | None:
    winner, problem = material.winner, material.problem
    traits = material.traits(winner) if winner else None
    if winner is None or problem is None or traits is None:
        return None
    try:
        found = estimate_traits(problem, traits, winner.gpu, registers=winner.registers)
    except GemmtuneError:
        return None
    return found if math.isfinite(found.us) else None


def constant_knobs(material: Material, family: str) -> str:
    """The knobs that every correct trial of a family has alike, in words; they have no axis."""
    records = material.correct(family)
    return ", ".join(f"{name} {values[0]}" for name, values in shared_knobs(records).items() if len(values) == 1)


def highlighted(text: str) -> Source:
    """CUDA source as HTML; every character that means something there is escaped."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import CudaLexer

    html = highlight(text, CudaLexer(), HtmlFormatter(nowrap=True))
    light = HtmlFormatter(style="default").get_style_defs(".source")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".source")
    return Source(html, f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}")


def interval(timing: Timing) -> str:
    """``"12.1-12.4"``, the 95 % interval in microseconds; ``"-"`` where there is none."""
    return "-" if timing.us_low == timing.us_high else f"{digits(timing.us_low)}-{digits(timing.us_high)}"


def digits(value: float, count: int = 4) -> str:
    """``count`` significant digits, and all of those before the point."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 10 ** (count - 1) else f"{value:#.{count}g}".rstrip(".")


def _triple(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else "-"
