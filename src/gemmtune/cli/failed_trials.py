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


_STOPPED = {"abandoned": "clearly beaten", "pruned": "hopeless before it ran"}
"""Why a study cut a trial short, for each of :data:`gemmtune.db.records.STOPPED`."""


def is_failure(outcome: str) -> bool:
    """Whether something went wrong: not where a study cut the trial short."""
    from gemmtune.db.records import CORRECT, STOPPED

    return outcome != CORRECT and outcome not in STOPPED


def next_step(outcome: str, trial_id: int, db: str | None) -> str:
    """The command line to go on with after a trial that ended in ``outcome``."""
    words = _NEXT.get(outcome, ("rerun {id}", ""))[0]
    kept = f" --db {shlex.quote(db)}" if db else ""
    return f"gemmtune {words.format(id=trial_id)}{kept if 'doctor' not in words else ''}"


def show(
    groups: Sequence[FailureGroup], failures: Mapping[str, int], counts: Mapping[str, int], db: str | None
) -> None:
    """Print how many trials failed, then each reason: its count and share, families, example and next step.

    ``failures`` are those asked for, by outcome; ``counts`` has every trial, correct ones too.
    """
    failed, total = sum(failures.values()), sum(counts.values())
    part = f"{failed:,} of {output.counted(total, 'trial')}"
    asked = next(iter(failures))
    if asked in _STOPPED:
        output.say(f"{part} {_were(failed)} {asked} ({_percent(failed, total)}), as {_STOPPED[asked]}: none failed.")
    else:
        kinds = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in failures.items())
        output.say(f"{part} failed ({_percent(failed, total)}): {kinds}.")
        if set(failures) == {name for name in counts if is_failure(name)}:  # no outcome was asked for by itself
            say_stopped(counts)
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
        so = _were(failed - shown) + f" {asked}" if asked in _STOPPED else "failed"
        output.say(f"{failed - shown:,} more {so} for other reasons: --limit N shows more of them.")


def say_stopped(counts: Mapping[str, int]) -> None:
    """Print how many trials a study cut short, where it did: they are not among those that failed."""
    told = [f"{n:,} {name} ({_STOPPED[name]})" for name, n in counts.items() if name in _STOPPED]
    if told:
        output.say(f"Besides, {' and '.join(told)}, which is no failure: --outcome shows them.")


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _indented(text: str) -> None:
    output.say(f"  {text}", hanging=4)


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 else f"{share:.1g} %"
