"""``gemmtune rerun``: one recorded trial again, alone, and what it did then beside what it does now."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmtune.cli import kernels, options, output, query
from gemmtune.cli.record_data import trial_data
from gemmtune.space.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmtune.device.base import Job
    from gemmtune.search.rerun import Rerun


def rerun(
    trial: kernels.Trial,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Then run it under compute-sanitizer: memcheck and racecheck.")
    ] = False,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="NAME", help="With --sanitize: memcheck, racecheck, synccheck or initcheck."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", help="cuda:N or emulator:GPU.  [default: the kind it was recorded on]"
        ),
    ] = None,
    form: query.Form = "table",
    db: options.Database = None,
) -> None:
    """Run a recorded trial again: that configuration alone, in a worker of its own, on the same inputs.

    Nothing is recorded. The exit code is 1 where the kernel fails.
    """
    kind = query.chosen_form(form)
    if tool and not sanitize:
        raise SettingError("The option --tool needs --sanitize: it chooses what compute-sanitizer looks for.")
    from gemmtune.db import History
    from gemmtune.device import open_device
    from gemmtune.search import rerun as again
    from gemmtune.search.lookup import find_kernel

    if sanitize:
        from gemmtune.device.cuda import sanitizer

        for name in tool or ():
            sanitizer.check_tool(name)
    with History(db, create=False) as history:
        record = find_kernel(history, trial)
        with closing(open_device(device or again.usual_device(record), running=True)) as where:
            with output.busy(f"running trial {record.id} again on {where.name}"):
                result = again.rerun(history, record, where)
            if kind == "table":
                _show(result)
        # The worker is gone by now: a sanitizer wants the GPU and its memory for itself.
        findings = _sanitize(result, tool or (), kind) if sanitize else []
    if kind != "table":
        output.show_data([_data(result, findings)], kind)
    if result.failed or any(not one["clean"] for one in findings):
        raise typer.Exit(1)


def _show(result: Rerun) -> None:
    record, report = result.record, result.report
    output.heading(f"Trial {record.id} again, alone, on {result.device}")
    output.say(f"{record.configuration} for {record.problem_key}, seed {result.seed}", hanging=2)
    print()
    measured, proof = report.measurement, report.verification
    then, now = record.outcome.replace("_", " "), report.outcome.replace("_", " ")
    rows = [["outcome", then, now]]
    if record.us is not None or measured is not None:
        ours = measured and output.microseconds(measured.us, estimated=measured.estimated)
        rows.append(["us", output.microseconds(record.us, estimated=record.estimated), ours or "-"])
    if record.ratio is not None or (measured is not None and measured.ratio is not None):
        rows.append(["ratio", output.ratio(record.ratio), output.ratio(measured.ratio if measured else None)])
    if record.rel_error is not None or proof is not None:
        rows.append(["error", output.small(record.rel_error), output.small(proof.rel_error if proof else None)])
        rows.append(["bound", output.small(record.error_bound), output.small(proof.error_bound if proof else None)])
    if record.registers is not None and result.job is not None and result.job.kernel.resources is not None:
        resources = result.job.kernel.resources
        rows.append(["registers", str(record.registers), str(resources.registers)])
        rows.append(["spilled bytes", str(record.spill_bytes), str(resources.spill_bytes)])
    output.show_table([output.Column(""), output.Column("then"), output.Column("now")], rows)
    print()
    if record.detail:
        output.say(f"Then: {' '.join(record.detail.split())}", hanging=2)
    if report.detail:
        output.say(f"Now: {' '.join(report.detail.split())}", hanging=2)
    for note in result.notes:
        output.say(note, hanging=2)
    output.say(f"{_verdict(result)} Nothing was recorded.", hanging=2)


def _verdict(result: Rerun) -> str:
    then, now = result.record.outcome, str(result.report.outcome)
    if then == now:
        return "It is right again." if now == "correct" else "It failed in the same way again."
    if now == "correct":
        if then in ("abandoned", "pruned"):
            return "It is right."
        return f"It is right now, though it ended as {then.replace('_', ' ')} then: what failed may not be the kernel."
    if then == "correct":
        return f"It was right then, and ends as {now.replace('_', ' ')} now: do not trust it."
    return f"It failed then and fails now, in another way: {then.replace('_', ' ')}, {now.replace('_', ' ')}."


def _data(result: Rerun, findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    report, measured, proof = result.report, result.report.measurement, result.report.verification
    return {
        "then": trial_data(result.record),
        "device": result.device,
        "seed": result.seed,
        "outcome": str(report.outcome),
        "detail": report.detail,
        "us": measured and measured.us,
        "us_low": measured and measured.us_low,
        "us_high": measured and measured.us_high,
        "ratio": measured and measured.ratio,
        "estimated": bool(measured and measured.estimated),
        "rel_error": proof and proof.rel_error,
        "error_bound": proof and proof.error_bound,
        "checks": list(proof.checks) if proof else [],
        "seconds": dict(report.seconds),
        "notes": list(result.notes),
        "sanitizer": list(findings),
    }


# ----------------------------------------------------------------------------------------------------------- sanitizer


def _sanitize(result: Rerun, tools: Sequence[str], kind: output.Format) -> list[dict[str, Any]]:
    """Run the tools one after another and tell what they found; none where there is nothing to run them on."""
    from gemmtune.device.cuda import sanitizer
    from gemmtune.space.errors import ToolchainError

    say = output.say if kind == "table" else output.note
    if kind == "table":
        print()
    if result.job is None:
        say("There is no kernel to sanitize: it does not compile.")
        return []
    if not result.device.startswith("cuda"):
        say(_emulated(result))
        return []
    try:
        program = sanitizer.find_sanitizer()
    except ToolchainError as error:
        say(f"Not sanitized: {error}")
        return []
    return [
        found
        for tool in tools or sanitizer.USUAL
        if (found := _under(tool, result.job, int(result.device.partition(":")[2] or 0), program, kind)) is not None
    ]


def _under(tool: str, job: Job, index: int, program: Any, kind: output.Format) -> dict[str, Any] | None:
    from gemmtune.device.cuda import sanitizer
    from gemmtune.space.errors import ToolchainError

    try:
        with output.busy(f"running it under {tool}, which takes its time"):
            verdict = sanitizer.sanitize(job, tool, index, program=program)
    except ToolchainError as error:
        output.note(f"Not sanitized: {error}")
        return None
    if kind == "table":
        output.say(f"{tool}: {'clean' if verdict.clean else 'NOT CLEAN'} ({verdict.summary})", hanging=2)
        for finding in verdict.findings:
            output.say(f"  {finding}", hanging=4)
    return {"tool": tool, "clean": verdict.clean, "summary": verdict.summary, "findings": list(verdict.findings)}


def _emulated(result: Rerun) -> str:
    return (
        f"compute-sanitizer watches real GPUs alone. The emulator made its own checks in the run above (every access "
        f"against its buffer's bounds and alignment, races between threads, deadlocks, under several schedules), and "
        f"its outcome says what they found. On the GPU itself ({result.record.gpu.name}), add --device cuda:0."
    )
