"""What the script of ``benchmarks/dispatch.py`` makes of sizes held out: its figures, bars and files."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from losing_gpu import Gpu, kernel

from gemmtune.device.base import Job, Limits, Report
from gemmtune.pack.ranges import RangeMeter
from gemmtune.pack.regret import HeldOut, Tuned, leave_one_out
from gemmtune.search.result_file import blank_of
from gemmtune.search.results import read_result_file, save
from gemmtune.space.gemm import Gemm


@pytest.fixture(scope="module")
def script(load_benchmark: Callable[[str], Any]) -> Any:
    return load_benchmark("dispatch.py")


def held(m: int, ratio: float, spread: float = 0.001, best: float = 1.2, n: int = 64) -> HeldOut:
    problem = Gemm(m, n, 32)
    if ratio == 1.0:
        return HeldOut(problem, "baseline", None, None, None, 1.0, 1.0, 1.0, best)
    return HeldOut(problem, "range", 2 * m, 10.0, 10.0 * ratio, ratio, ratio - spread, ratio + spread, best)


@pytest.mark.parametrize(
    ("ratio", "spread", "allowed"),
    [(1.2, 0.001, True), (1.0, 0.0, True), (0.985, 0.001, True), (0.97, 0.001, False), (0.97, 0.02, True)],
)
def test_an_answer_may_lose_two_percent_and_its_noise(
    script: ModuleType, ratio: float, spread: float, allowed: bool
) -> None:
    assert script.answer(held(16, ratio, spread))["allowed"] is allowed


def test_the_summary_counts_what_was_answered(script: ModuleType) -> None:
    answers = [script.answer(h) for h in (held(1, 1.1), held(2, 1.0), held(4, 0.9), held(1, 1.2, n=128))]
    found = script.summarise(answers)
    assert (found["products"], found["by_range"], found["too_slow"], found["worst_ratio"]) == (2, 3, 1, 0.9)
    assert found["worst_regret"] == pytest.approx(1.2 / 0.9 - 1)
    assert found["mean_regret"] == pytest.approx(sum(a["regret"] for a in answers) / 4)
    json.dumps(found)


def test_other_products_of_an_earlier_run_are_kept(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "dispatch.json"
    assert script.earlier(file, (64, 32)) == []
    answers: list[dict[str, Any]] = [script.answer(held(1, 1.1)), script.answer(held(1, 1.1, n=128))]
    file.write_text(json.dumps({"summary": script.summarise(answers)}))
    assert [a["n"] for a in script.earlier(file, (64, 32))] == [128]


def result(script: ModuleType, answers: list[dict[str, Any]], driver: str = "580") -> Any:
    blank = blank_of("dispatch", "NVIDIA H200", {"driver": driver}, script.PROTOCOL)
    return replace(blank, summary=script.summarise(answers))


def test_files_of_two_gpus_of_a_kind_join(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    save(files[0], result(script, [script.answer(held(m, 1.1)) for m in (1, 2)]))
    save(files[1], result(script, [script.answer(held(m, 0.9, n=128)) for m in (1, 2)]))
    save(files[2], result(script, [script.answer(held(1, 1.1, n=256))], driver="999"))
    monkeypatch.setattr("sys.argv", ["dispatch.py", str(files[0]), "--join", str(files[1])])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 1  # two answers are too slow
    joined = read_result_file(files[0])
    assert [(a["n"], a["m"]) for a in joined.summary["answers"]] == [(64, 1), (64, 2), (128, 1), (128, 2)]
    assert (joined.summary["products"], joined.summary["too_slow"]) == (2, 2)
    assert script.join(tmp_path / "new.json", files[:2]) == joined.summary
    with pytest.raises(SystemExit, match=r"driver 580.* and .*driver 999"):
        script.join(files[0], [files[2]])


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=5, unique=True), st.sets(st.integers(1, 9999), max_size=60),
       st.integers(0, 40))  # fmt: skip
def test_points_outlast_an_interrupted_run(script: ModuleType, sizes: list[int], losing: set[int], after: int) -> None:
    """A run begun again measures no point anew that it had, and ends as one that was never interrupted."""
    group = [Tuned(Gemm(m, 8, 8), kernel(str(m)), 1.5) for m in sizes]
    wrong = set(list(losing)[:1])
    whole = leave_one_out(RangeMeter(Gpu(losing, wrong)), group, "sustained", "cold")  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        file, first = Path(folder) / "a.points", Interrupted(losing, wrong, after)
        with contextlib.suppress(KeyboardInterrupt):
            leave_one_out(script.KeptMeter(first, file, "580"), group, "sustained", "cold")
        with file.open("a") as torn:
            torn.write('\n{"key": "to')
        second = Gpu(losing, wrong)
        assert leave_one_out(script.KeptMeter(second, file, "580"), group, "sustained", "cold") == whole
        assert not set(first.done) & set(zip(second.runs, second.measured, strict=True))
        other = Gpu(losing, wrong)
        leave_one_out(script.KeptMeter(other, file, "999"), group, "sustained", "cold")
        assert set(first.done) <= set(zip(other.runs, other.measured, strict=True))  # of another driver, all anew


@pytest.mark.parametrize("trials", [0, 12])
def test_what_is_tuned_is_held_out_without_tuning_where_no_trials_are_wanted(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    tuned: list[Any] = []
    monkeypatch.setattr(script, "tune", lambda problems, *_, **__: tuned.extend(problems))
    monkeypatch.setattr(script, "hold_out", lambda *_: [held(1, 1.1)])
    (found,) = script.measure(None, tmp_path, (64, 32), (1, 2), trials, 1.0)
    assert (found["ratio"], found["trials"], len(tuned)) == (1.1, 0, 2 if trials else 0)


class Interrupted(Gpu):
    """Ctrl-C comes after so many points."""

    def __init__(self, losing: set[int], wrong: set[int], after: int) -> None:
        super().__init__(losing, wrong)
        self.after, self.done = after, []

    def run(self, job: Job, limits: Limits) -> Report:
        if len(self.done) == self.after:
            raise KeyboardInterrupt
        report = super().run(job, limits)
        self.done.append((self.runs[-1], self.measured[-1]))
        return report
