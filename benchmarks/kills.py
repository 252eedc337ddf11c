"""Kill a study's process at seeded random moments and start it again: nothing may be lost, doubled or left behind.

``python benchmarks/kills.py --device emulator:h200 --kills 50 --seed 0 OUT.json``. The same ``gemmtune tune`` command
is started ``--kills`` times and ended by SIGKILL each time, then once more to its end; beside it an undisturbed study
runs in a history of its own. A moment is a number of trials recorded, spread over the whole run from its start to the
finals, and a random delay after that. After each kill: every process that the command had started must go, the database
must pass ``PRAGMA integrity_check``, and all that was recorded before must stand there unchanged. At the end: the
budget exactly, each number and configuration once, no claim left open; and where times are estimates, which come out
the same every time, the very trials and the winner of the undisturbed study.

The figures go into the summary of a result file; the exit code is 1 where a check failed. Linux, for ``/proc``.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from gemmtune.db import History, TrialRecord
from gemmtune.db.standing import standing
from gemmtune.search.result_file import blank_of
from gemmtune.search.results import save

PATIENCE = 20.0
"""Seconds that the processes of a killed command may take to notice and end."""
RUN_LIMIT = 600.0
"""Seconds for one start of the command."""
POLL = 0.004
START_DELAY = 2.5
"""Seconds after a start within which a kill comes that no new trial is waited for: interpreter, imports, opening."""
PROTOCOL = (
    "The process of one gemmtune tune command is ended by SIGKILL at seeded moments (a number of trials recorded and "
    "a random delay) and the same command started again; lost, changed and doubled trials, damage and orphans count."
)


@dataclass(frozen=True)
class Moment:
    """When to kill: ``delay`` s after ``after`` trials were recorded, or ``start`` s after the start where they are."""

    after: int
    delay: float
    start: float


@dataclass
class Findings:
    """What the checks found; everything but ``kills`` and ``orphans_gone_s`` is to stay empty."""

    kills: list[dict[str, float | int]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    orphans_gone_s: float = 0.0


def moments(kills: int, trials: int, seed: int, delay: float) -> list[Moment]:
    """Moments spread over the run in ascending order, the last of them in the finals.

    ``delay`` is the most seconds after the trials were recorded. Where no new trial is waited for, the kill comes
    within :data:`START_DELAY` seconds after the start instead.
    """
    rng = random.Random(seed)  # noqa: S311 - seeded, so that a finding can be had again
    after = [*sorted(rng.randint(0, trials) for _ in range(kills - 1)), trials]
    return [Moment(n, rng.uniform(0, delay), rng.uniform(0, START_DELAY)) for n in after]


class Killed:
    """One command and its history.

    Args:
        command: what is started.
        path: of its history.
        cache: the folder of compiled kernels.
    """

    def __init__(self, command: list[str], path: Path, cache: str | None) -> None:
        self.command = command
        self.path = path
        self.marker = f"GEMMTUNE_KILLS={secrets.token_hex(8)}"
        name, _, value = self.marker.partition("=")
        self.environment = {**os.environ, name: value, "GEMMTUNE_DB": str(path), "NO_COLOR": "1"}
        if cache is not None:
            self.environment["GEMMTUNE_CACHE"] = cache
        self.log = path.with_suffix(".log")

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command."""
        with self.log.open("ab") as log:
            return subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)

    def finish(self) -> None:
        """Run the command to its end.

        Raises:
            SystemExit: it fails.
        """
        with self.start() as process:
            code = process.wait(RUN_LIMIT)
        if code:
            raise SystemExit(f"{' '.join(self.command)} ended with code {code}:\n{self.log.read_text()[-2000:]}")

    def kill_at(self, moment: Moment) -> dict[str, float | int] | None:
        """Start the command and kill it; None where it ended before that.

        Gives the trials recorded then, the seconds since the start, and how many processes there were.
        """
        before = self.done()
        with self.start() as process:
            began = time.monotonic()
            deadline = began + RUN_LIMIT
            while self.done() < moment.after and process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL)
            delay = moment.delay if moment.after > before else moment.start
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                seconds, processes = time.monotonic() - began, len(self.alive())
                process.send_signal(signal.SIGKILL)
                if process.wait() == -signal.SIGKILL:
                    return {"trials": self.done(), "seconds": round(seconds, 3), "processes": processes}
            return None

    def done(self, state: str = "done") -> int:
        """Trials recorded so far, or claimed; the command goes on undisturbed."""
        if not self.path.exists():
            return 0
        try:
            with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as raw:
                return int(raw.execute("SELECT count(*) FROM trial WHERE state = ?", (state,)).fetchone()[0])
        except sqlite3.OperationalError:  # no table yet
            return 0

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the file."""
        if not self.path.exists():
            return []
        with closing(sqlite3.connect(self.path)) as raw:
            whole = [row[0] for row in raw.execute("PRAGMA integrity_check")]
            foreign = [str(row) for row in raw.execute("PRAGMA foreign_key_check")]
        return [line for line in whole if line != "ok"] + foreign

    def recorded(self) -> dict[str, tuple[object, ...]]:
        """Every finished trial by its uuid, with its first measurement: what must never change."""
        if not self.path.exists():
            return {}
        query = (
            "SELECT trial.uuid, number, configuration, outcome, detail, kernel_id, finished, min(measurement.uuid), us "
            "FROM trial LEFT JOIN measurement ON measurement.trial_id = trial.id AND NOT measurement.final "
            "WHERE state = 'done' GROUP BY trial.uuid"
        )
        try:
            with closing(sqlite3.connect(self.path)) as raw:
                return {row[0]: row[1:] for row in raw.execute(query)}
        except sqlite3.OperationalError:
            return {}

    def alive(self) -> list[str]:
        """The processes that the command started, or their children started, and that still live."""
        return [f"{pid} {name}" for pid, name in _marked(self.marker.encode())]

    def wait_for_orphans(self) -> tuple[float, list[str]]:
        """Seconds until none of them lived, and those that did not go."""
        began = time.monotonic()
        while (left := self.alive()) and time.monotonic() - began < PATIENCE:
            time.sleep(POLL)
        return time.monotonic() - began, left


def _marked(marker: bytes) -> Iterator[tuple[int, str]]:
    """Pid and name of the living processes with this setting in their environment."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "comm").read_text().strip()
        except OSError:  # gone meanwhile, or another user's
            continue


def disturb(target: Killed, plan: list[Moment]) -> Findings:
    """Kill ``target`` at every moment of ``plan``, check after each, and let it finish at last."""
    found = Findings()
    stand: dict[str, tuple[object, ...]] = {}
    for moment in plan:
        hit = target.kill_at(moment)
        if hit is None:  # it was done before its moment came: catch the next start, which has nothing left to do
            hit = target.kill_at(Moment(0, 0.0, min(moment.start, 0.5)))
        if hit is None:
            found.failed.append(f"the command ended by itself before {moment}: {target.log.read_text()[-300:]}")
            continue
        gone, left = target.wait_for_orphans()
        found.orphans += left
        found.orphans_gone_s = max(found.orphans_gone_s, gone)
        found.damaged += target.damage()
        now = target.recorded()
        found.lost += [f"{uuid} {values}" for uuid, values in stand.items() if now.get(uuid) != values]
        stand = now
        found.kills.append(hit)
        print("killed with", ", ".join(f"{value} {name}" for name, value in hit.items()), flush=True)  # noqa: T201
    target.finish()
    now = target.recorded()
    found.lost += [f"{uuid} {values}" for uuid, values in stand.items() if now.get(uuid) != values]
    found.damaged += target.damage()
    return found


def doubled(trials: list[TrialRecord]) -> list[str]:
    """Numbers and configurations that were recorded more than once."""
    counts = Counter[str]()
    for trial in trials:
        counts.update([f"number {trial.number}", trial.configuration])
    return [name for name, n in counts.items() if n > 1]


def union(trials: list[TrialRecord]) -> list[tuple[object, ...]]:
    """What two runs of a study on a device that only estimates must agree in."""
    return sorted((t.number, t.configuration, t.outcome, t.us, t.rel_error, t.cubin_sha256) for t in trials)


def main() -> int:
    """Run the benchmark; 0 where every check passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the result file to write")
    parser.add_argument("--device", default="emulator:h200")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--shape", default="64x64x64")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--workers", type=int, default=None, help="compile processes")
    parser.add_argument("--delay", type=float, default=0.3, help="most seconds between a trial and a kill")
    parser.add_argument("--cache", default=None, help="folder of compiled kernels; by default a fresh one")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="gemmtune-kills-"))
    try:
        return _measure(options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(options: argparse.Namespace, scratch: Path) -> int:
    command = [sys.executable, "-c", "from gemmtune.cli.main import main; main()", "tune", options.shape]
    command += ["--dtype", options.dtype, "--device", options.device, "--trials", str(options.trials)]
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    cache = options.cache or str(scratch / "cache")
    disturbed, calm = (Killed(command, scratch / f"{name}.db", cache) for name in ("disturbed", "calm"))
    began = time.monotonic()
    found = disturb(disturbed, moments(options.kills, options.trials, options.seed, options.delay))
    seconds = time.monotonic() - began
    with History(disturbed.path) as history:
        trials = history.trials(limit=None)
        (study,) = history.studies()
    wrong = {
        "kills missing": options.kills - len(found.kills),
        "failed": found.failed,
        "damaged": found.damaged,
        "lost": found.lost,
        "orphans": found.orphans,
        "doubled": doubled(trials),
        "claims left": disturbed.done("claimed"),
        "numbers missing": sorted(set(range(options.trials)) - {t.number for t in trials}),
        "over budget": max(0, len(trials) - options.trials),
    }
    best = standing(trials)[0]
    if best.estimated:
        calm.finish()
        with History(calm.path) as history:
            expected = history.trials(limit=None)
        wrong["differing"] = [str(row) for row in set(union(trials)) ^ set(union(expected))]
        wrong["another best"] = int(standing(expected)[0].configuration != best.configuration)
    summary = {
        "estimated": best.estimated,
        "problem": study.problem_key,
        "seed": options.seed,
        "budget": options.trials,
        "trials": len(trials),
        "outcomes": dict(Counter(t.outcome for t in trials)),
        "kills": found.kills,
        "orphans_gone_s": round(found.orphans_gone_s, 3),
        "seconds": round(seconds, 1),
        "wrong": wrong,
    }
    result = blank_of(options.output.stem, study.gpu.name, study.environment, PROTOCOL, summary)
    save(options.output, result)
    bad = {name: value for name, value in wrong.items() if value}
    verdict = f"wrong: {bad}" if bad else "nothing lost, doubled, damaged or left behind"
    print(f"{len(found.kills)} kills, {len(trials)} trials in {seconds:.0f} s: {verdict}")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
