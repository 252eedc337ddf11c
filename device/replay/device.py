"""The replay device: what was recorded of a configuration is what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemmtune.device.base import Job, Limits, Measurement, Outcome, Report
from gemmtune.space.errors import ConfigurationError, UnsupportedError
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recorded import Recorded, RecordedSpace, Recording, read_recording


class ReplayDevice:
    """A recorded space in the place of a GPU.

    Studies on it search the recorded configurations alone (:meth:`space`); every job is answered with the recorded
    outcome and time. Samples, clocks and the proof are not in a recording, and are not in the reports either.

    Args:
        path: a file that :func:`gemmtune.space.recorded.read_recording` reads.

    Raises:
        RecordingError: it cannot be read.
        UnsupportedError: it is of another tool's kernel, which nothing can be rendered or compiled for.
    """

    kind = "replay"

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.recording: Recording = read_recording(path)
        if self.recording.problem is None or self.recording.gpu is None:
            raise UnsupportedError(
                f"The recording {self.recording.name!r} is of a kernel that gemmtune does not have: compare strategies "
                f"on it with gemmtune replay."
            )
        self._problem = self.recording.problem
        self._gpu = self.recording.gpu

    @property
    def name(self) -> str:
        """``replay:FILE``."""
        return f"replay:{self.path}"

    @property
    def gpu(self) -> Gpu:
        """The GPU of the record."""
        return self._gpu

    @property
    def estimates(self) -> bool:
        """Whether the recorded times are estimates."""
        return self.recording.estimated

    def environment(self) -> dict[str, str]:
        """The versions of the record, and its name: times of two records do not meet."""
        return {**self.recording.environment, "recording": self.recording.name}

    def start(self) -> None:
        """Nothing to get ready."""

    def space(self, problem: Problem, families: Sequence[str]) -> RecordedSpace:
        """What a study of ``problem`` searches: the recorded configurations of ``families``.

        Raises:
            UnsupportedError: the record is of another problem, or of none of the families.
        """
        if problem.key != self._problem.key:
            raise UnsupportedError(
                f"The recording {self.recording.name!r} is of {self._problem.key}, not of {problem.key}."
            )
        held = [name for name in families if name in self.recording.parameters]
        if not held:
            raise UnsupportedError(
                f"The recording {self.recording.name!r} is of {', '.join(self.recording.parameters)}, not of "
                f"{', '.join(families)}."
            )
        return RecordedSpace(self.recording, held)

    def run(self, job: Job, limits: Limits) -> Report:
        """What was recorded; a job of another problem, or of a configuration that was not recorded, was not run."""
        configuration = job.kernel.configuration
        if job.problem.key != self._problem.key:
            return Report(Outcome.PRUNED, f"{job.problem.key} was not recorded: {self.recording.name!r} is of another.")
        try:
            return _report(self.recording.find(configuration), self.recording.estimated)
        except ConfigurationError as error:
            return Report(Outcome.PRUNED, str(error))

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """The same as :meth:`run` for each job: a record knows no other round."""
        return [self.run(job, Limits()) for job in jobs]

    def close(self) -> None:
        """Nothing to end."""


def _report(row: Recorded, estimated: bool) -> Report:
    outcome = Outcome(row.outcome)
    if not row.timed or row.us is None:
        return Report(outcome, row.detail or f"It was recorded as {outcome}.", seconds=row.seconds)
    low, high = row.us_low or row.us, row.us_high or row.us
    ratio = row.ratio
    measurement = Measurement(
        us=row.us,
        us_low=low,
        us_high=high,
        baseline_us=None if ratio is None else ratio * row.us,
        ratio=ratio,
        ratio_low=None if ratio is None else ratio * row.us / high,
        ratio_high=None if ratio is None else ratio * row.us / low,
        estimated=estimated,
    )
    return Report(outcome, row.detail, None, measurement, seconds=row.seconds)
