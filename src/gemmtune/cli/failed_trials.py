"""How ``gemmtune query failures`` tells what went wrong: one reason after another, with an example and a next step."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gemmtune.cli import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemmtune.db.records import FailureGroup

_LONGEST = 400
"""Characters of a reason that are shown; a compiler's log may be longer."""
_NEXT: dict[str, tuple[str, str]] = {
    "compile": ("show {id} --source", "the source that was refused"),
    "pruned": ("diagnose {id}", "what its resources cost it"),
    "launch": ("rerun {id} --sanitize", "run it alone, under compute-sanitizer where that is present"),
    "timeout": ("rerun {id}", "run it alone: does it end?"),
    "out_of_memory": ("rerun {id}", "run it alone, with all the memory there is"),
    "wrong": ("rerun {id} --sanitize", "run it alone, under compute-sanitizer where that is present"),
    "unstable": ("doctor --noise", "how quiet this machine is"),
    "abandoned": ("diagnose {id}", "why it is slow"),
    "infrastructure": ("doctor", "what is wrong with this machine"),
}
"""The command that helps with each outcome, and what it shows."""


def next_step(outcome: str, trial_id: int, db: str | None) -> str:
    """The command line to go on with after a trial that ended in ``outcome``."""
    words = _NEXT.get(outcome, ("rerun {id}", ""))[0]
    kept = f" --db {shlex.quote(db)}" if db else ""
    return f"gemmtune {words.format(id=trial_id)}{kept if 'doctor' not in words else ''}"


def show(groups: Sequence[FailureGroup], failures: Mapping[str, int], total: int, db: str | None) -> None:
    """Print how many trials failed, then each reason: its count and share, families, example and next step.

    ``failures`` are those asked for, by outcome; ``total`` counts every trial, correct ones too.
    """
    failed = sum(failures.values())
    kinds = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in failures.items())
    output.say(f"{failed:,} of {output.counted(total, 'trial')} failed ({_percent(failed, total)}): {kinds}.")
    for group in groups:
        print()
        families = ", ".join(f"{n:,} {name}" if len(group.families) > 1 else name for name, n in group.families.items())
        output.heading(
            f"{group.count:,} {group.outcome.replace('_', ' ')} ({_percent(group.count, failed)} of these; {families})"
        )
        example = group.example
        reason = " ".join(example.detail.split()) or "no reason was recorded"
        if len(reason) > _LONGEST:
            reason = f"{reason[:_LONGEST].rsplit(' ', 1)[0]} ... ('gemmtune show {example.id}' prints all of it)"
        where = f"{example.kind} {example.gpu.short or example.gpu.name}"
        _indented(reason)
        _indented(f"e.g. trial {example.id}, {example.problem_key} on {where}: {example.configuration}")
        purpose = _NEXT.get(group.outcome, ("", ""))[1]
        _indented(f"next: {next_step(group.outcome, example.id, db)}" + (f"  ({purpose})" if purpose else ""))
    shown = sum(group.count for group in groups)
    if shown < failed:
        print()
        output.say(f"{failed - shown:,} more failed for other reasons: --limit N shows more of them.")


def _indented(text: str) -> None:
    output.say(f"  {text}", hanging=4)


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 else f"{share:.1g} %"
