"""A stage that does not end costs its own limit; a replaced worker proves its device sane; nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.device import probe
from gemmtune.device.base import Job, Limits, Outcome
from gemmtune.device.cuda import sanity
from gemmtune.device.cuda.sanity import settled
from gemmtune.device.emulator.engine import EmulatorEngine
from gemmtune.device.worker import Worker
from gemmtune.search.limits import ESTIMATE_FLOOR, FLOOR, TimeLimit
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe, Tile

ENGINE = """
import os, signal, threading
from pathlib import Path
from gemmtune.device.base import Outcome, Report
from gemmtune.device.probe import Health

class Staged:
    "Goes through the stages and gets stuck in the one that the job names; its probe answers what a file says."
    probe_first = True
    def __init__(self, notes):
        self.notes = Path(notes)
        self.announce = lambda stage: None
        self.spent = False
    def run(self, job):
        what = job.kernel.source.entry
        for stage in ("load", "verify", "measure"):
            self.announce(stage)
            if what == stage: threading.Event().wait()
            if what == f"dies in {stage}": os.kill(os.getpid(), signal.SIGSEGV)
        if what == "sticky":
            self.spent = True
            return Report(Outcome.LAUNCH, "an illegal address")
        if what == "stages for ever":
            while True: self.announce("verify")
        return Report(Outcome.CORRECT, str(os.getpid()))
    def compare(self, jobs):
        return [self.run(job) for job in jobs]
    def probe(self, reference):
        with (self.notes / "references").open("a") as log:
            print(reference, file=log)
        said = self.notes / "trouble"
        trouble = said.read_text() if said.exists() else ""
        if trouble == "hang": threading.Event().wait()
        if trouble == "crash": os.abort()
        if trouble == "raise": raise RuntimeError("no such kernel")
        return Health(100.0 + os.getpid() % 7, trouble)
    def close(self):
        (self.notes / "closed").touch()
"""


class Recorder:
    """An aftermath that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.left = ""

    def before(self) -> None:
        self.calls.append("before")

    def after(self, pid: int) -> str:
        assert not Path(f"/proc/{pid}").exists()
        self.calls.append(pid)
        return self.left


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "staged_engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "staged_engine:Staged"


@pytest.fixture
def aftermath() -> Recorder:
    return Recorder()


@pytest.fixture
def staged(engine: str, tmp_path: Path, aftermath: Recorder) -> Iterator[Worker]:
    with Worker(engine, {"notes": str(tmp_path)}, aftermath=aftermath) as w:
        yield w


def job(what: str = "fine") -> Job:
    recipe = LaunchRecipe(what, (32, 1, 1), ("1", "1", "1"), (), Tile(1, 1, "0", "0"))
    source = KernelSource(Configuration.of("fake", {}), what, "", "", recipe)
    return Job(Gemm(8, 8, 8), CompiledKernel(source, "sm_90a", b"", None, "", "", 0.0, False), seed=1)


# ------------------------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize("stage", ["load", "verify", "measure"])
def test_a_stage_that_hangs_costs_its_own_limit_and_is_named(staged: Worker, stage: str) -> None:
    limits = Limits(**{"start": 60.0, "load": 3600.0, "verify": 3600.0, "measure": 3600.0, stage: 0.1})
    report = staged.request(job(stage), limits)
    assert report.outcome is Outcome.TIMEOUT
    assert report.killed
    assert report.detail.startswith(f"It did not end its {stage} stage within 0.1 s: the worker was killed")
    assert staged.request(job(), limits).outcome is Outcome.CORRECT


def test_stages_that_never_end_do_not_go_on_for_ever(staged: Worker) -> None:
    report = staged.request(job("stages for ever"), Limits(load=0.05, verify=0.05, measure=0.05))
    assert report.outcome is Outcome.TIMEOUT


@pytest.mark.parametrize("stage", ["load", "verify", "measure"])
def test_a_crash_in_any_stage_is_one_report(staged: Worker, stage: str) -> None:
    report = staged.request(job(f"dies in {stage}"), Limits())
    assert (report.outcome, report.killed) == (Outcome.LAUNCH, True)
    assert "SIGSEGV" in report.detail


def test_of_several_kernels_none_is_blamed_for_the_worker(staged: Worker) -> None:
    assert [r.killed for r in staged.compare([job(), job("dies in load")], 60)] == [False, False]
    assert [r.killed for r in staged.compare([job("dies in load")], 60)] == [True]
    hung = staged.compare([job(), job("verify")], 0.3)
    assert {(r.outcome, r.killed) for r in hung} == {(Outcome.TIMEOUT, False)}


# ------------------------------------------------------------------------------------------------------------- sanity


def references(folder: Path) -> list[str]:
    return (folder / "references").read_text().split()


def test_later_workers_are_held_to_the_first_ones_time(staged: Worker, tmp_path: Path) -> None:
    first = int(staged.request(job(), Limits()).detail)
    for _ in range(2):
        staged.request(job("sticky"), Limits())
    assert staged.request(job(), Limits()).outcome is Outcome.CORRECT
    assert references(tmp_path) == ["None", *[str(100.0 + first % 7)] * 2]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("It gives wrong numbers.", "is not sane: It gives wrong numbers."),
        ("hang", "did not come up within 2 s"),
        ("crash", "SIGABRT"),
        ("raise", "cannot run a known kernel: The engine failed: RuntimeError: no such kernel"),
    ],
)
def test_an_insane_device_is_an_infrastructure_report_until_it_is_sane_again(
    staged: Worker, tmp_path: Path, trouble: str, said: str
) -> None:
    staged.request(job("sticky"), Limits())
    (tmp_path / "trouble").write_text(trouble)
    started = staged.started
    for again in range(1, 3):
        report = staged.request(job(), Limits(start=2))
        assert (report.outcome, report.killed) == (Outcome.INFRASTRUCTURE, False)
        assert said in report.detail
        assert staged.started == started + again
        assert staged.pid is None
    (tmp_path / "trouble").unlink()
    assert staged.request(job(), Limits()).outcome is Outcome.CORRECT


def test_a_device_that_is_insane_from_the_start_costs_no_trial(staged: Worker, tmp_path: Path) -> None:
    (tmp_path / "trouble").write_text("It gives wrong numbers.")
    with pytest.raises(ToolchainError, match="is not sane: It gives wrong numbers"):
        staged.request(job(), Limits())


@given(values=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4), steps=st.integers(0, 60))
def test_the_known_answer_is_that_of_the_loop(values: list[int], steps: int) -> None:
    start = np.resize(np.array(values, np.uint32), probe.THREADS)
    x = start.astype(object)
    for _ in range(steps):
        x = (x * probe.MULTIPLIER + probe.INCREMENT) % 2**32
    assert probe.answer(start, steps).tolist() == x[::-1].tolist()


def test_the_probe_finds_one_wrong_bit_on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EmulatorEngine("h200")
    assert engine.probe(None) == probe.Health()
    right = probe.answer

    def off(values: Any, steps: int) -> Any:
        expected = right(values, steps)
        expected[300] ^= 1
        return expected

    monkeypatch.setattr(probe, "answer", off)
    assert "1 wrong numbers of 512, the first at 300" in engine.probe(None).trouble


def card(clock: Clock, us: Callable[[float], float]) -> Callable[[], float]:
    def run() -> float:
        clock.now += 0.01
        return us(clock.now)

    return run


def test_a_reference_is_taken_once_the_card_is_awake() -> None:
    clock = Clock()
    found = settled(card(clock, lambda now: 500.0 if now < 0.1 else 80.0), None, clock)
    assert found == probe.Health(80.0)


@pytest.mark.parametrize(("settles", "sane"), [(0.0, True), (3.0, True), (60.0, False)])
def test_a_slow_card_gets_a_while_to_settle(settles: float, sane: bool) -> None:
    clock = Clock()
    found = settled(card(clock, lambda now: 119.0 if now > settles else 160.0), 80.0, clock)
    assert (found.trouble == "") == sane
    if not sane:
        assert "took 160 us or more for 5 s, but 80 us when this program began" in found.trouble
        assert clock.now < sanity.SETTLE_SECONDS + 0.1


# ---------------------------------------------------------------------------------------------------------- aftermath


def test_every_death_is_followed_up_and_every_birth_announced(staged: Worker, aftermath: Recorder) -> None:
    pids = [int(staged.request(job(), Limits()).detail)]
    aftermath.left = "12 MiB are still in use."
    for what in ("sticky", "dies in verify", "verify"):
        report = staged.request(job(what), Limits(verify=0.2))
        assert report.killed
        assert report.detail.endswith(" 12 MiB are still in use.")
        pids.append(int(staged.request(job(), Limits()).detail))
    assert aftermath.calls == ["before", pids[0], "before", pids[1], "before", pids[2], "before"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_worker_is_what_a_system_without_memory_kills_first(staged: Worker) -> None:
    staged.start()
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(Path(f"/proc/{staged.pid}/oom_score_adj").read_text()) >= min(own + 1, 500)


def test_a_broken_context_is_not_cleaned_up_but_a_sound_one_is(staged: Worker, tmp_path: Path) -> None:
    staged.request(job("sticky"), Limits())
    assert not (tmp_path / "closed").exists()
    staged.request(job(), Limits())
    staged.close()
    assert (tmp_path / "closed").exists()


def test_a_child_that_the_driver_holds_does_not_hold_the_study(staged: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the operating system keeps a process that is stuck in a driver, SIGKILL or not."""
    staged.start()
    held = staged._process
    assert held is not None
    waits = held.wait

    def stuck(timeout: float | None = None) -> int:
        raise subprocess.TimeoutExpired("worker", timeout or 0)

    monkeypatch.setattr(held, "wait", stuck)
    monkeypatch.setattr(held, "poll", lambda: None)
    report = staged.request(job("verify"), Limits(verify=0.1))
    assert report.outcome is Outcome.TIMEOUT
    assert "does not die" in report.detail
    assert staged.request(job(), Limits()).outcome is Outcome.CORRECT
    monkeypatch.undo()
    waits()
    staged.close()
    assert not staged._undead


# -------------------------------------------------------------------------------------------------------- time limits


@given(st.lists(st.dictionaries(st.sampled_from(["load", "verify", "measure"]), st.floats(0.001, 100)), min_size=1))
def test_each_stage_is_held_to_a_multiple_of_its_own_quickest(successes: list[dict[str, float]]) -> None:
    limit = TimeLimit()
    assert limit.limits == Limits()
    for seconds in successes:
        limit.succeeded(seconds)
    assert limit.limits.start == FLOOR.start
    for stage in ("load", "verify", "measure"):
        quickest = min((s[stage] for s in successes if stage in s), default=0.0)
        assert getattr(limit.limits, stage) == pytest.approx(getattr(FLOOR, stage) + 10 * quickest)


def test_a_host_compiler_gets_more_time_than_a_gpu() -> None:
    limit = TimeLimit(estimates=True)
    limit.succeeded({"verify": 0.1})
    assert limit.limits.verify >= ESTIMATE_FLOOR.verify > FLOOR.verify
    assert FLOOR.verify <= 5
    assert FLOOR.measure <= 5
