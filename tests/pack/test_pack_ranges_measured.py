"""The ranges an export claims where it measured them; what noise takes from them, and what a size left out shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from exported import H200, PROBLEM, record

from gemmtune.codegen.cache import KernelCache
from gemmtune.db import History
from gemmtune.device.base import Job, Limits, Measurement, Outcome, Report
from gemmtune.pack.dispatch import Dispatch
from gemmtune.pack.export import export_pack
from gemmtune.pack.format import read_pack
from gemmtune.pack.ranges import spans
from gemmtune.search.results import read_result_file
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu

# ---------------------------------------------------------------------------------------------------------- ranges


@dataclass
class Meter:
    """A GPU whose kernels reach ``ratio(m)``."""

    ratio: Callable[[int], float]
    outcome: Callable[[int], Outcome] = lambda m: Outcome.CORRECT
    jobs: list[Job] = field(default_factory=list)
    kind: str = "cuda"
    name: str = "cuda:0"
    gpu: Gpu = H200
    estimates: bool = False
    spread: float = 0.0

    def environment(self) -> dict[str, str]:
        return {"driver": "580"}

    def run(self, job: Job, limits: Limits) -> Report:
        self.jobs.append(job)
        m = job.problem.axes["m"]
        ratio = self.ratio(m)
        return Report(
            self.outcome(m),
            measurement=Measurement(10, 9, 11, 10 * ratio, ratio, ratio - self.spread, ratio + self.spread),
        )

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        return [self.run(job, timeout) for job in jobs]

    def close(self) -> None:
        raise AssertionError("the device is the caller's")


def ranges_of(path: Path) -> dict[int, tuple[int, int]]:
    """The claimed range of m by the m in the middle of its exact row's problem."""
    rows = [r for t in read_pack(path).tables for r in t.rows]
    return {sum(r.axes["m"]) // 2: r.axes["m"] for r in rows if not r.exact}


def test_a_range_is_claimed_where_it_was_measured(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    record(history, cache, Gemm(1024, 48, 32))
    meter = Meter(lambda m: 1.2)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    rows = [r for t in read_pack(tmp_path / "p.kpack").tables for r in t.rows]
    found = {r.axes["m"]: [p.axes["m"] for p in r.points] for r in rows}
    assert found == {
        (64, 64): [64], (1024, 1024): [1024], (32, 256): [32, 144, 256], (257, 2048): [257, 1152, 2048],
    }  # fmt: skip
    assert all(job.verify and job.measure and job.thorough for job in meter.jobs)
    assert {job.effort for job in meter.jobs} == {"trial"}


def test_a_range_that_loses_at_an_end_is_halved_or_dropped(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    record(history, cache, Gemm(64, 48, 32))
    export_pack(tmp_path / "a.kpack", history, cache=cache, device=Meter(lambda m: 1.2 if m < 100 else 0.9))
    assert list(ranges_of(tmp_path / "a.kpack").values()) == [(32, 90)]
    export_pack(tmp_path / "b.kpack", history, cache=cache, device=Meter(lambda m: 0.9))
    assert ranges_of(tmp_path / "b.kpack") == {}


def test_a_kernel_that_is_wrong_elsewhere_claims_nothing(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    meter = Meter(lambda m: 2.0, lambda m: Outcome.WRONG if m > 64 else Outcome.CORRECT)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert ranges_of(tmp_path / "p.kpack") == {}


def test_no_range_without_a_gpu_of_this_kind(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    for meter in (Meter(lambda m: 2.0, gpu=gpu("a100")), Meter(lambda m: 2.0, estimates=True)):
        export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
        assert ranges_of(tmp_path / "p.kpack") == {}
        assert meter.jobs == []


def test_losers_and_estimates_claim_no_range(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32), 0.5)
    record(history, cache, Gemm(64, 40, 32), None)
    meter = Meter(lambda m: 2.0)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert meter.jobs == []


def test_offered_spans_meet_and_never_overlap() -> None:
    offered = spans([4096, 1, 16, 128, 17])
    assert offered[1][0] == 1
    assert offered[4096][1] == 8192
    ordered = [offered[m] for m in sorted(offered)]
    for (_, high), (low, _) in pairwise(ordered):
        assert high < low
    assert all(low <= m <= high for m, (low, high) in offered.items())


def test_a_range_gives_way_on_the_side_where_its_middle_loses(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    record(history, cache, Gemm(64, 48, 32))
    loses = {128: 1.2, 80: 0.9}  # wins at the far end, not in between
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(lambda m: loses.get(m, 1.2)))
    assert list(ranges_of(tmp_path / "p.kpack").values()) == [(32, 64)]  # (32, 90) would hold the loss at 80


# ----------------------------------------------------------------------------------------------------------- noise


def test_a_win_inside_the_noise_is_the_baselines(history: History, cache: KernelCache, tmp_path: Path) -> None:
    kernel = record(history, cache, PROBLEM, 1.005)  # its interval is 0.995 to 1.015
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    data = read_pack(tmp_path / "p.kpack")
    (row,) = data.tables[0].rows
    assert (row.kernel, row.candidate, row.ratio) == ("baseline", kernel.cubin_sha256, 1.005)
    assert "baseline" in str(report)
    choice = Dispatch(data, H200.key, H200.arch).choose(PROBLEM)
    assert (choice.how, choice.kernel) == ("baseline", None)
    assert "lies within noise (0.995 to 1.015), so the baseline serves" in choice.why


def test_a_range_needs_more_than_noise_at_every_point(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    meter = Meter(lambda m: 1.2 if m <= 64 else 1.004, spread=0.01)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert list(ranges_of(tmp_path / "p.kpack").values()) == [(32, 64)]


# -------------------------------------------------------------------------------------------------- one size left out


def test_a_size_held_out_is_answered_by_its_neighbour(history: History, cache: KernelCache, tmp_path: Path) -> None:
    for m in (32, 64, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    meter = Meter(lambda m: 1.2)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    held = {h.problem.axes["m"]: h for h in report.held_out}
    assert {m: (h.how, h.tuned_at) for m, h in held.items()} == {
        32: ("range", 64), 64: ("range", 32), 128: ("range", 64),
    }  # fmt: skip
    assert all(h.regret == pytest.approx(0.25) and h.best_ratio == 1.5 for h in held.values())
    assert "3 sizes, 3 answered by a neighbour's range" in str(report)
    assert "never slower than the baseline" in str(report)
    assert "25.0 % in the mean" in str(report)
    judged = [j.problem.axes["m"] for j in meter.jobs if j.seed == 1 and j.effort == "final"]
    assert sorted(judged) == [32, 64, 128]  # anew, on other inputs than the claim's


def test_a_loss_between_the_points_of_a_range_is_found(history: History, cache: KernelCache, tmp_path: Path) -> None:
    for m in (32, 60, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(lambda m: 0.8 if m == 60 else 1.5))
    (lost,) = [h for h in report.held_out if h.ratio < 1]
    assert (lost.problem.axes["m"], lost.regret) == (60, pytest.approx(1.5 / 0.8 - 1))
    assert "at most 25.0 % slower than the baseline (gemm 60x48x32" in str(report)


def test_a_range_is_taken_back_where_a_size_held_out_shows_it_wrong(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    for m in (32, 60, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    meter = Meter(lambda m: 1.5, lambda m: Outcome.WRONG if m == 60 else Outcome.CORRECT)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert ranges_of(tmp_path / "p.kpack") == {}  # the three sizes share one cubin
    (line,) = report.left_out
    assert "is wrong for gemm 60x48x32" in line


def test_losers_and_lone_sizes_answer_with_the_baseline(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(32, 48, 32), 1.5)
    record(history, cache, Gemm(64, 48, 32), 0.7)
    record(history, cache, Gemm(64, 40, 32), 1.5)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(lambda m: 1.5))
    held = {h.problem.axes["m"]: h for h in report.held_out}
    assert set(held) == {32, 64}
    assert (held[32].how, held[32].regret) == ("baseline", pytest.approx(0.5))
    assert (held[64].how, held[64].ratio, held[64].regret) == ("range", 1.5, 0.0)
    quiet = export_pack(tmp_path / "q.kpack", history, cache=cache, device=Meter(lambda m: 1.5), hold_out=False)
    assert quiet.held_out == ()
    assert "leave one M out" not in str(quiet)


# ------------------------------------------------------------------------------------------------------- the benchmark


def test_the_benchmark_tunes_holds_out_and_writes_one_file(
    tmp_path: Path, cache: KernelCache, monkeypatch: pytest.MonkeyPatch, load_benchmark: Callable[[str], Any]
) -> None:
    script = load_benchmark("dispatch.py")

    class OnGpu(Meter):
        def close(self) -> None:
            pass

    def tune(problems: list[Gemm], device: Any, *, history: History, **_: Any) -> None:
        assert [p.dtype for p in problems] == ["bf16"] * 3
        for problem in problems:
            record(history, cache, Gemm(problem.m, problem.n, problem.k), 1.5)

    monkeypatch.setattr(script, "SIZES", (32, 64, 128))
    monkeypatch.setattr(script, "open_device", lambda name: OnGpu(lambda m: 0.9 if m == 64 else 1.2))
    monkeypatch.setattr(script, "tune", tune)
    out = tmp_path / "dispatch.json"
    for product, code in (("48x32", 0), ("40x32", 0)):
        argv = ["dispatch.py", str(out), "--product", product, "--db", str(tmp_path / "histories")]
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert ended.value.code == code
    result = read_result_file(out)
    assert (result.name, result.gpu, result.rows) == ("dispatch", "NVIDIA H200", ())
    answers = result.summary["answers"]
    assert [(a["m"], a["n"], a["how"]) for a in answers] == [
        (m, n, "baseline" if m == 64 else "range") for n in (48, 40) for m in (32, 64, 128)
    ]  # fmt: skip
    assert result.summary["products"] == 2


def test_a_pack_holds_no_loss_that_its_hold_outs_met(history: History, cache: KernelCache, tmp_path: Path) -> None:
    for m in (32, 64, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    lost: set[int] = set()

    def ratio(
        m: int,
    ) -> float:  # the one kernel of all three loses somewhere between 65 and 127, where hold-outs ask first
        if 64 < m < 128 and not lost:
            lost.add(m)
        return 0.9 if m in lost else 1.5

    export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(ratio))
    assert lost
    assert not any(low <= m <= high for m in lost for low, high in ranges_of(tmp_path / "p.kpack").values())
