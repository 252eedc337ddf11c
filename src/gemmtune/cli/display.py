"""What a study looks like while it runs, and what it ends with: live on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gemmtune.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from gemmtune.db.records import TrialRecord
    from gemmtune.device.base import Device
    from gemmtune.search.study import StudyResult
    from gemmtune.space.problem import Problem

BEST = 5
_STEPS = 10
"""Lines on progress in a study, besides one for each new best."""


def display(studies: int, time_limit: float | None) -> Progress:
    """The observer that suits standard output."""
    return (LiveProgress if output.is_terminal() else Progress)(studies, time_limit)


class Progress:
    """Plain lines: two at the start, one for each new best and each tenth of the budget, the table at the end.

    Args:
        studies: how many there will be in all.
        time_limit: seconds for all of them, where there is a limit.
    """

    def __init__(self, studies: int, time_limit: float | None) -> None:
        self.studies = studies
        self.time_limit = time_limit
        self.finished = 0
        self.began = time.monotonic()
        self.study_began = self.began
        self.heading = ""
        self.done = self.resumed = self.budget = 0
        self.best: TrialRecord | None = None
        self.counts: dict[str, int] = {}
        self.stage = ""
        self.share: float | None = None
        self.timed = False
        self._told = self.began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the screen as it should be, whatever happened."""

    # --------------------------------------------------------------------------------- called by the study

    def study_started(self, problem: Problem, device: Device, valid: int, raw: int, budget: int, resumed: int) -> None:
        """A new study, or one that goes on."""
        self.budget, self.done, self.resumed = budget, resumed, resumed
        self.best, self.counts, self.study_began = None, {}, time.monotonic()
        self.stage = "compiling the first kernels"
        number = f"[{self.finished + 1}/{self.studies}] " if self.studies > 1 else ""
        kind = ", times are estimates" if device.estimates else ""
        self.heading = f"{number}{problem.key} on {device.name} ({device.gpu.name}{kind})"
        if self.time_limit is not None:
            left = self.time_limit - (self.study_began - self.began)
            self.share = max(0.0, left) / max(1, self.studies - self.finished)
        self.timed = self.share is not None and budget == valid
        trials, size = output.counted(budget, "trial"), output.counted(valid, "valid configuration")
        if self.share is not None:
            limit = output.duration(self.share)
            trials = f"as many trials as fit into {limit}," if self.timed else f"{trials} within {limit}"
        space = f"{trials} of {size} ({raw:,} before the rules)"
        going_on = f"; {resumed} done before" if resumed else ""
        if self.finished:
            _say("")
        self._start(f"{space}{going_on}")

    def borrowed(self, sources: Sequence[str]) -> None:
        """What the study starts from."""
        self._note(f"borrowed: {'; '.join(sources)}")

    def trial_finished(
        self, record: TrialRecord, best: TrialRecord | None, done: int, budget: int, counts: Mapping[str, int]
    ) -> None:
        """One trial more."""
        improved = best is not None and best.id == record.id  # not where it is an earlier run's
        self.best, self.done, self.budget, self.counts, self.stage = best, done, budget, dict(counts), ""
        self._advance(improved)

    def finals_started(self, problem: Problem, candidates: int) -> None:
        """The finalists meet."""
        self.stage = f"finals of the best {candidates}"
        self._note(self.stage)

    def study_finished(self, result: StudyResult) -> None:
        """The table of the best."""
        self.finished += 1
        self._stop()
        show_result(result)

    # --------------------------------------------------------------------------------------------- the look

    def _start(self, space: str) -> None:
        _say(self.heading)
        _say(f"  {space}")

    def _advance(self, improved: bool) -> None:
        of = "" if self.timed else f"/{self.budget}"
        if improved and self.best is not None:
            _say(f"  {self.done}{of}  new best {score(self.best)}  {self.best.configuration}")
        elif self.done == self.budget or self._due():
            _say(f"  {self.done}{of}  {outcomes_text(self.counts)}, {self.left_text()}")
            self._told = time.monotonic()

    def _due(self) -> bool:
        """Whether a tenth of the budget, or of the time, has gone by since the last line on progress."""
        if self.timed and self.share is not None:
            return time.monotonic() - max(self._told, self.study_began) >= self.share / _STEPS
        return self.done % -(-self.budget // _STEPS) == 0

    def _note(self, text: str) -> None:
        _say(f"  {text}")

    def _stop(self) -> None:
        pass

    # ------------------------------------------------------------------------------------------------ texts

    def seconds_left(self) -> float | None:
        """Of this study, by the pace of its trials and by the time limit; None while nothing is known."""
        now = time.monotonic()
        known = []
        if self.done > self.resumed:
            known.append((now - self.study_began) / (self.done - self.resumed) * (self.budget - self.done))
        if self.share is not None:
            known.append(self.share - (now - self.study_began))
        return max(0.0, min(known)) if known else None

    def fraction(self) -> float:
        """How much of this study is done, by its trials or by its time."""
        by_trials = self.done / max(1, self.budget)
        return max(by_trials, (time.monotonic() - self.study_began) / self.share) if self.share else by_trials

    def left_text(self) -> str:
        """Time left, in words."""
        left = self.seconds_left()
        return "time left unknown" if left is None else f"{output.duration(left)} left"


class LiveProgress(Progress):
    """The same, with bar, outcomes and best redrawn in place below the heading."""

    def __init__(self, studies: int, time_limit: float | None) -> None:
        super().__init__(studies, time_limit)
        self._live: Live | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the cursor back."""
        self._stop()

    def _start(self, space: str) -> None:
        from rich.live import Live
        from rich.text import Text

        screen = output.console()
        screen.print(Text(self.heading, style="bold"))
        screen.print(Text(space, style="dim"))
        self._live = Live(console=screen, get_renderable=self._render, refresh_per_second=4, transient=True)
        self._live.start()

    def _advance(self, improved: bool) -> None:
        if self._live is not None:
            self._live.refresh()

    def borrowed(self, sources: Sequence[str]) -> None:
        """What the study starts from, above what is redrawn."""
        from rich.text import Text

        output.console().print(Text(f"borrowed: {'; '.join(sources)}", style="dim"))

    def _note(self, text: str) -> None:
        self._advance(improved=False)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Spinner("dots"),
            ProgressBar(total=1.0, completed=min(1.0, self.fraction()), width=30),
            Text(f"{self.done} trials" if self.timed else f"{self.done} of {self.budget} trials"),
            Text(self.stage or self.left_text(), style="dim"),
        )
        facts = Table.grid(padding=(0, 2))
        facts.add_row(Text("outcomes", style="dim"), Text(outcomes_text(self.counts)))
        facts.add_row(Text("best", style="dim"), Text("-" if self.best is None else score(self.best), style="bold"))
        if self.best is not None:
            facts.add_row("", Text(self.best.configuration, style="dim"))
        return Group(bar, facts)


def score(record: TrialRecord) -> str:
    """``"12.3 us est., ratio -"`` or ``"12.30 us, 1.04x cublas"``."""
    t = record.timing
    if t is None:
        return "-"
    if t.estimated:
        return f"{output.digits(t.us, 3)} us est., ratio -"
    return f"{output.microseconds(t.us)} us, {output.ratio(t.ratio)} {record.baseline or 'the baseline'}"


def show_result(result: StudyResult) -> None:
    """One study's end: the table of its best, and a line on how it went."""
    before = f", {result.resumed} of them before this run" if result.resumed else ""
    _say("")
    if result.best:
        columns, rows = best_table(result.best[:BEST], result.problem)
        baseline = next((r.baseline for r in result.best if r.baseline), "the baseline")
        marked = ", estimated" if result.estimated else f" (ratio: time of {baseline} / ours)"
        output.show_table(columns, rows, f"Best of {result.problem.key}{marked}")
    elif result.trials:
        _say(f"{result.problem.key}: no right kernel was found.")
    stopped = "Stopped by Ctrl-C after " if result.interrupted else ""
    trials, seconds = output.counted(result.trials, "trial"), output.duration(result.seconds)
    _say(f"{stopped}{trials} in {seconds}{before}: {outcomes_text(result.outcomes)}.")


def outcomes_text(counts: Mapping[str, int]) -> str:
    """``"38 correct, 2 wrong"``, the most frequent first."""
    kinds = sorted(((n, kind) for kind, n in counts.items() if n), key=lambda item: (-item[0], item[1]))
    return ", ".join(f"{n} {kind.replace('_', ' ')}" for n, kind in kinds) or "no outcome yet"


def best_table(records: list[TrialRecord], problem: Problem) -> tuple[list[output.Column], list[list[str]]]:
    """Columns and rows for the best kernels of one problem."""
    estimated = all(r.timing.estimated for r in records if r.timing)
    columns = [
        output.Column("#", right=True),
        output.Column("us", right=True),
        *([] if estimated else [output.Column("95 %", right=True)]),
        output.Column("TFLOP/s", right=True),
        output.Column("ratio", right=True),
        output.Column("error/bound", right=True),
        output.Column("configuration", long=True),
    ]
    rows = []
    for rank, record in enumerate(records, 1):
        t = record.timing
        if t is None:
            continue
        interval = f"{output.microseconds(t.us_low)}-{output.microseconds(t.us_high)}"
        rows.append(
            [
                str(rank),
                output.microseconds(t.us, estimated=t.estimated),
                *([] if estimated else [interval]),
                output.digits(problem.flops / t.us / 1e6, 3),
                output.ratio(t.ratio),
                f"{output.small(record.rel_error)}/{output.small(record.error_bound)}",
                record.configuration,
            ]
        )
    return columns, rows


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
