"""``gemmtune show``: all that is known of one kernel; its source, machine code or launch recipe."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmtune.cli import kernels, options, output, query
from gemmtune.cli.record_data import trial_data
from gemmtune.space.errors import ConfigurationError, ProblemError

if TYPE_CHECKING:
    from gemmtune.db import History, MeasurementRecord, TrialRecord, VerificationData


def show(
    kernel: kernels.Kernel,
    source: Annotated[bool, typer.Option("--source", help="Print the CUDA source alone.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code alone.")] = False,
    recipe: Annotated[bool, typer.Option("--recipe", help="Print the launch recipe alone, as JSON.")] = False,
    dtype: options.OneDType = "bf16",
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    gpu: kernels.Gpu = None,
    regime: kernels.Regime = None,
    cache: kernels.Cache = None,
    form: query.Form = "table",
    db: options.Database = None,
) -> None:
    """All that is known of a kernel: configuration, times, proof, resources, environment.

    Or one thing alone, ready for a file. Source and recipe are in the history; machine code needs the cubin, from an
    exported pack, the cache, or the compiler that made it.
    """
    kind = query.chosen_form(form)
    if source + sass + recipe > 1:
        raise ProblemError("Only one of --source, --sass and --recipe can be shown at a time.")
    from gemmtune.db import History

    with History(db, create=False) as history:
        record = kernels.named(
            history, kernel, dtype=dtype, out_dtype=out_dtype, layout=layout, epilogue=epilogue, gpu=gpu,
            regime=regime, cache=cache,
        )  # fmt: skip
        if source:
            _alone(record, "source", _source(record), kind)
        elif recipe:
            found = _recipe(record)
            if kind == "csv":
                _alone(record, "recipe", json.dumps(found), kind)
            else:
                _print(json.dumps(found, indent=2))
        elif sass:
            _alone(record, "sass", _sass(history, record), kind)
        else:
            _show(record, history.verification(record.id), history.measurements(record.id), kind, db)


def _alone(record: TrialRecord, what: str, text: str, kind: output.Format) -> None:
    """Print one thing of a kernel as it is, or for programs with whose it is."""
    if kind == "table":
        _print(text)
        return
    of = {"id": record.id, "uuid": record.uuid, "configuration": record.configuration}
    output.show_data([{**of, what: text}], kind)


def _print(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def _source(record: TrialRecord) -> str:
    """The recorded source; of a trial that did not compile, today's rendering, which a line on stderr says."""
    if record.source:
        return record.source
    from gemmtune.search.lookup import source_of

    text = source_of(record).text
    output.note(f"Trial {record.id} kept no source, since it did not compile: this is its configuration as of today.")
    return text


def _recipe(record: TrialRecord) -> dict[str, Any]:
    if record.recipe is None:
        raise ConfigurationError(
            f"Trial {record.id} has no launch recipe, since it ended as {record.outcome.replace('_', ' ')} before its "
            f"kernel was made."
        )
    return dict(record.recipe)


def _sass(history: History, record: TrialRecord) -> str:
    from gemmtune.codegen.sass import disassemble
    from gemmtune.search.lookup import cubin_of

    found = cubin_of(history, record)
    text = disassemble(found.data).text
    output.note(f"Cubin {record.cubin_sha256[:12]} for {record.arch}: {found.origin}.")
    return text


# ------------------------------------------------------------------------------------------------------------ summary


def _show(
    record: TrialRecord,
    proof: VerificationData | None,
    measurements: list[MeasurementRecord],
    kind: output.Format,
    db: str | None,
) -> None:
    if kind != "table":
        data = {
            **trial_data(record),
            "template_hash": record.template_hash,
            "arch": record.arch,
            "checks": list(proof.checks) if proof else [],
            "excess": record.excess,
            "measurements": [_measurement_data(one) for one in measurements],
            "recipe": record.recipe and dict(record.recipe),
        }
        output.show_data([data], kind)
        return
    output.heading(f"Trial {record.id}: {record.outcome.replace('_', ' ')}")
    output.say(record.configuration, hanging=2)
    if record.detail:
        output.say(" ".join(record.detail.split()), hanging=2)
    print()
    output.facts(
        [
            *_circumstances(record),
            *_times(record, measurements),
            *_proof(record, proof),
            *_kernel(record),
            ("environment", ", ".join(f"{k} {v}" for k, v in record.environment.items()) or "-"),
        ]
    )
    print()
    output.say_next(_next(record, db))


def _measurement_data(one: MeasurementRecord) -> dict[str, Any]:
    d = one.data
    return {
        "final": one.final, "measured": one.measured, "us": d.us, "us_low": d.us_low, "us_high": d.us_high,
        "baseline": d.baseline_name, "baseline_us": d.baseline_us, "ratio": d.ratio, "ratio_low": d.ratio_low,
        "ratio_high": d.ratio_high, "estimated": d.estimated, "clock_mhz": d.clock_mhz, "throttle": d.throttle,
        "counters": dict(d.counters), "samples": len(d.samples),
    }  # fmt: skip


def _circumstances(record: TrialRecord) -> list[tuple[str, str]]:
    where = f"{record.kind} {record.gpu.short or record.gpu.name}"
    timed = f", {record.regime}, {record.cache} cache"
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started))
    stages = ", ".join(f"{stage} {_seconds(s)}" for stage, s in record.seconds.items() if stage != "wall")
    wall = record.seconds.get("wall")
    spent = f", {_seconds(wall)} in all" if wall is not None else ""
    return [
        ("problem", record.problem_key),
        ("where", f"{where}{timed}"),
        ("trial", f"{record.study_id}.{record.number} (study.trial), begun {begun}; uuid {record.uuid}"),
        *([("spent", f"{stages}{spent}")] if stages or spent else []),
    ]


def _times(record: TrialRecord, measurements: list[MeasurementRecord]) -> list[tuple[str, str]]:
    rows = []
    counts = record.timing
    for one in measurements:
        d = one.data
        said = output.microseconds(d.us, estimated=d.estimated).replace(" est.", "") + " us"
        if d.estimated:
            said += ", estimated"
        elif d.us_low != d.us_high:
            said += f" ({output.microseconds(d.us_low)}-{output.microseconds(d.us_high)} in 95 %)"
        if (flops := _flops(record)) is not None:
            said += f", {output.digits(flops / d.us / 1e6, 3)} TFLOP/s"
        if d.ratio is not None:
            beside = f"{output.microseconds(d.baseline_us)} us" if d.baseline_us is not None else "untimed"
            span = f" ({d.ratio_low:.3f}-{d.ratio_high:.3f})" if d.ratio_low is not None and d.ratio_high else ""
            said += f"; {d.ratio:.3f}x {d.baseline_name or 'the baseline'}{span}, which took {beside}"
        if d.samples:
            said += f"; {output.counted(len(d.samples), 'sample')}"
        if d.clock_mhz:
            said += f" at {d.clock_mhz:.0f} MHz"
        if d.throttle:
            said += f", throttled by {d.throttle}"
        rows.append(("time, final" if one.final else "time", said))
        if d.counters:
            rows.append(("counters", ", ".join(f"{name} {output.digits(v, 4)}" for name, v in d.counters.items())))
    if counts is not None and counts.final and len(rows) > 1:
        rows.append(("", "The final time, taken beside its rivals, is the one that counts."))
    return rows or [("time", "none: it was never timed")]


def _flops(record: TrialRecord) -> int | None:
    """The problem's operations; None for one that this version does not know."""
    from gemmtune.search.lookup import problem_of
    from gemmtune.space.errors import GemmtuneError

    try:
        return problem_of(record).flops
    except (GemmtuneError, LookupError):
        return None


def _proof(record: TrialRecord, proof: VerificationData | None) -> list[tuple[str, str]]:
    if proof is None:
        return [("proof", "none: it was never verified")]
    verdict = "right" if proof.passed else "wrong"
    share = 100 * proof.coverage
    compared = f"{share:.3g} % of the output compared"
    said = (
        f"{verdict}: error {output.small(proof.rel_error)}, bound {output.small(proof.error_bound)}, worst element at "
        f"{output.digits(proof.excess, 3)} of what it may be off; {compared}"
    )
    return [("proof", said), *(("", check) for check in proof.checks)]


def _kernel(record: TrialRecord) -> list[tuple[str, str]]:
    if record.recipe is None:
        return [("kernel", "none: nothing was compiled")]
    from gemmtune.search.lookup import EMPTY_SHA256

    block, grid, cluster = (record.recipe.get(name) for name in ("block", "grid", "cluster"))
    counted = [
        (record.registers, "registers a thread"),
        (record.spill_bytes, "bytes spilled"),
        (record.stack_bytes, "bytes of stack"),
        (record.shared_bytes, "bytes of shared memory a block"),
    ]
    resources = ", ".join(f"{value:,} {what}" for value, what in counted if value is not None)
    entry, sha = record.recipe.get("entry"), record.cubin_sha256
    cubin = "no cubin (there was no NVRTC)" if sha in ("", EMPTY_SHA256) else f"cubin {sha}"
    return [
        ("resources", resources or "unknown"),
        ("launch", f"block {_triple(block)}, cluster {_triple(cluster)}, grid {_triple(grid)}{_blocks(record)}"),
        ("kernel", f"{entry} for {record.arch}, NVRTC {record.nvrtc or '-'}, {cubin}"),
        ("template", f"{record.family} {record.template_hash[:16]}"),
    ]


def _blocks(record: TrialRecord) -> str:
    """How many blocks that is for the trial's problem."""
    from gemmtune.search.lookup import problem_of
    from gemmtune.space.errors import GemmtuneError
    from gemmtune.space.recipe import LaunchRecipe

    try:
        x, y, z = LaunchRecipe.from_json(record.recipe or {}).grid_size(problem_of(record).environment())
    except (GemmtuneError, LookupError):  # of a version that is newer than this one
        return ""
    return f" = {output.counted(x * y * z, 'block')}"


def _triple(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, list | tuple) else "-"


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _next(record: TrialRecord, db: str | None) -> list[tuple[str, str]]:
    kept = f" --db {shlex.quote(db)}" if db else ""
    steps = [(f"gemmtune show {record.id} --source{kept}", "its CUDA source; --sass and --recipe likewise")]
    steps.append((f"gemmtune rerun {record.id}{kept}", "prove and time it again, alone"))
    if record.recipe is not None:
        steps.append((f"gemmtune diagnose {record.id}{kept}", "what limits it, and what to try"))
    return steps
