"""``gemmtune rerun``: what a trial did then beside what it does now, emulated, and with devices of the tests' own."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen.kernel import KernelResources
from gemmtune.codegen.render import render, template_hash
from gemmtune.db import History, KernelData, MeasurementData, StudySpec, TrialRecord, TrialResult
from gemmtune.device.base import Job, Limits, Measurement, Outcome, Report
from gemmtune.device.cuda import sanitizer
from gemmtune.device.cuda.sanitizer import Verdict
from gemmtune.search import rerun as again
from gemmtune.search.lookup import check_runs_on
from gemmtune.search.rerun import rerun, usual_device
from gemmtune.search.trial import Timing
from gemmtune.space import families
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

Cli = Callable[..., Any]
PROBLEM = Gemm(40, 24, 16, "fp32")
NAIVE = Configuration.of("naive", {})


def spec(kind: str = "emulator", **changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "problem_json": PROBLEM.to_json(), "problem_key": PROBLEM.key, "kind": kind, "gpu": gpu("h200"),
        "environment": {"driver": "1"}, "regime": "sustained", "cache": "cold", "families": ("naive",),
        "strategy": "tpe", "seed": 11,
    }  # fmt: skip
    return StudySpec(**{**fields, **changes})


def kernel(text: str | None = None, **changes: Any) -> KernelData:
    """The naive kernel as recorded, its source replaced by ``text``."""
    source = render(PROBLEM, NAIVE)
    fields: dict[str, Any] = {
        "template_hash": source.template_hash, "source": text or source.text, "cubin_sha256": "ab" * 32,
        "arch": "sm_90a", "nvrtc": "9.9", "recipe": source.recipe.to_json(), "template_text": "template",
        "registers": 30, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0,
    }  # fmt: skip
    return KernelData(**{**fields, **changes})


@pytest.fixture
def path(tuned: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a history of the test's own is; the cache is that of the small study, with a built emulator."""
    monkeypatch.setenv("GEMMTUNE_DB", str(tmp_path / "history.db"))
    return tmp_path / "history.db"


def record(path: Path, result: TrialResult, **changes: Any) -> TrialRecord:
    """The trial number 5 of a study, with this result."""
    with History(path) as history:
        study = history.open_study(spec(**changes))
        trial_id = study.claim(5, NAIVE)
        study.finish(trial_id, result)
        found = history.trial(trial_id)
        assert found is not None
        return found


class Recorded:
    """A device that answers with a report of the test's and remembers the job."""

    estimates = False

    def __init__(self, report: Report, kind: str = "cuda", name: str = "cuda:0", of: str = "h200") -> None:
        self.report, self.kind, self.name, self.gpu = report, kind, name, gpu(of)
        self.jobs: list[Job] = []
        self.closed = 0

    def environment(self) -> dict[str, str]:
        return {"driver": "2"}

    def run(self, job: Job, limits: Limits) -> Report:
        assert limits == Limits()
        self.jobs.append(job)
        return self.report

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorded]:
    """Make every device the given one."""

    def use(report: Report, **how: Any) -> Recorded:
        device = Recorded(report, **how)
        monkeypatch.setattr("gemmtune.device.open_device", lambda name=None, *, running=False: device)
        return device

    return use


MEASURED = Measurement(9.0, 8.9, 9.1, 10.0, 1.11, 1.1, 1.12, (9.0,) * 5, (10.0,) * 5)
RIGHT = Report(Outcome.CORRECT, measurement=MEASURED)


# ------------------------------------------------------------------------------------------------------- the emulator


def test_a_right_trial_is_right_again_and_nothing_is_recorded(cli: Cli, tuned: tuple[Path, str]) -> None:
    with History(tuned[0]) as history:
        best = history.best(limit=1)[0]
        before = history.outcomes()
    done = cli("rerun", best.uuid[:10])
    assert done.code == 0, done
    assert done.out.startswith(f"Trial {best.id} again, alone, on emulator:h200\n{best.configuration} for ")
    rows = {line[:14].strip(): line[14:].split() for line in done.out.splitlines()}
    assert rows["outcome"] == ["correct", "correct"]
    assert rows["us"][:2] == rows["us"][2:]
    assert rows["registers"] == [str(best.registers)] * 2
    assert rows["error"][0] == rows["error"][1]  # the same seed, the same inputs
    assert done.out.endswith("It is right again. Nothing was recorded.\n")
    with History(tuned[0]) as history:
        assert history.outcomes() == before
        assert len(history.measurements(best.id)) == 1


def test_a_kernel_that_the_gpu_cannot_run_is_refused_with_the_reason(
    cli: Cli, path: Path, on: Callable[..., Recorded]
) -> None:
    device = on(RIGHT, kind="emulator", name="emulator:a100", of="a100")
    trial = record(path, TrialResult("correct", ""), gpu=gpu("h200"))
    hopper = replace(trial, family="hopper")
    with History(path) as history, pytest.raises(UnsupportedError, match=r"hopper needs compute capability 9\.0"):
        rerun(history, hopper, device)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=rf"Trial {trial.id} cannot run on NVIDIA L4: hopper needs .* has 8\.9"):
        check_runs_on(hopper, gpu("l4"))
    check_runs_on(replace(hopper, problem_json=Gemm(64, 64, 64).to_json()), gpu("h100"))
    check_runs_on(replace(trial, family="somebody's"), gpu("l4"))  # of whose needs nothing is known
    assert device.jobs == []


def test_a_record_proves_nothing_again(cli: Cli, tuned: tuple[Path, str]) -> None:
    done = cli("rerun", "1", "--device", "replay:some.json.gz")
    assert (done.code, done.out) == (2, "")
    assert "replay:some.json.gz is a record, which runs no kernel: name a GPU" in done.err


def test_the_recorded_source_runs_even_where_it_is_no_longer_what_the_template_makes(cli: Cli, path: Path) -> None:
    wrong = render(PROBLEM, NAIVE).text.replace("float acc = 0.f;", "float acc = row == 7 ? 1.f : 0.f;")
    assert wrong != render(PROBLEM, NAIVE).text
    trial = record(path, TrialResult("wrong", "It was wrong.", kernel(wrong, template_hash="0" * 64)))
    done = cli("rerun", str(trial.id), "--sanitize")
    assert done.code == 1, done
    assert "Then: It was wrong." in done.out
    assert "row 7" in done.out
    assert "The template of family naive has changed since; what ran is the recorded source." in done.out
    assert "another binary" in done.out
    assert "It failed in the same way again." in done.out
    assert "compute-sanitizer watches real GPUs alone" in done.out


def test_a_source_that_does_not_compile_fails_again(cli: Cli, path: Path) -> None:
    broken = render(PROBLEM, NAIVE).text.replace("float acc = 0.f;", "float acc = nonsense;")
    trial = record(path, TrialResult("compile", "NVRTC refused it.", kernel(broken)))
    done = cli("rerun", str(trial.id), "--sanitize")
    assert done.code == 1, done
    assert "nonsense" in done.out
    assert "There is no kernel to sanitize" in done.out


# ----------------------------------------------------------------------------------------------- any device, any report


def test_the_job_is_the_trials_own(cli: Cli, path: Path, on: Callable[..., Recorded]) -> None:
    trial = record(path, TrialResult("correct", "", kernel()), kind="cuda", regime="burst", cache="warm")
    device = on(RIGHT)
    assert cli("rerun", str(trial.id)).code == 0
    (job,) = device.jobs
    assert (job.problem, job.kernel.source.text) == (PROBLEM, render(PROBLEM, NAIVE).text)
    assert (job.seed, job.regime, job.cache) == (Timing(seed=11).trial_seed(5), "burst", "warm")
    assert (job.best_us, job.best_ratio, job.verify, job.measure) == (None, None, True, True)
    assert device.closed == 1
    on(Report(Outcome.WRONG, "No."))
    done = cli("rerun", str(trial.id), "--format", "json")
    (data,) = json.loads(done.out)
    assert (done.code, data["outcome"], data["detail"], data["us"]) == (1, "wrong", "No.", None)
    assert (data["seed"], data["then"]["outcome"], data["sanitizer"]) == (11 * 1_000_003 + 5, "correct", [])


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ("correct", "correct", "It is right again."),
        ("correct", "wrong", "It was right then, and ends as wrong now: do not trust it."),
        ("out_of_memory", "correct", "It is right now, though it ended as out of memory then"),
        ("wrong", "wrong", "It failed in the same way again."),
        ("launch", "timeout", "It failed then and fails now, in another way: launch, timeout."),
        ("abandoned", "correct", "this time it was timed to the end. It is right."),
        ("pruned", "correct", "It was pruned and never ran; this time it ran all the same. It is right."),
    ],
)
def test_then_and_now_are_told_apart_and_the_exit_code_is_nows(
    cli: Cli, path: Path, on: Callable[..., Recorded], then: str, now: str, words: str
) -> None:
    trial = record(path, TrialResult(then, "" if then == "correct" else "Then so.", kernel()), kind="cuda")
    on(replace(RIGHT, outcome=Outcome(now), detail="" if now == "correct" else "Now so."))
    done = cli("rerun", str(trial.id))
    assert done.code == (now != "correct")
    assert words in done.out.replace("\n", " ")
    assert ("Then: Then so." in done.out) == (then != "correct")
    assert ("Now: Now so." in done.out) == (now != "correct")


def test_what_is_not_as_it_was_is_said(cli: Cli, path: Path, on: Callable[..., Recorded]) -> None:
    reused = TrialResult("correct", "Same binary as trial 3.", kernel(), None, MeasurementData(9.0, 9.0, 9.0))
    trial = record(path, reused, kind="cuda")
    on(RIGHT)
    same = cli("rerun", str(trial.id)).out
    assert "driver 1 to 2" in same
    assert "nvrtc 9.9 to " in same
    assert "took the result of an equal binary" in same
    assert "do not compare" not in same
    on(RIGHT, of="a100")
    other = cli("rerun", str(trial.id)).out
    assert "It was recorded on cuda h200 and runs on cuda a100 now: its times do not compare." in other


def test_the_usual_device_is_the_one_of_its_kind(path: Path) -> None:
    assert usual_device(record(path, TrialResult("wrong", "No."), kind="cuda")) == "cuda:0"
    assert usual_device(record(path, TrialResult("wrong", "No."), gpu=gpu("a100"))) == "emulator:a100"
    with pytest.raises(UnsupportedError, match="'replay', which runs nothing: name another with --device"):
        usual_device(record(path, TrialResult("wrong", "No."), kind="replay"))


def test_a_study_would_prune_it_is_said_of_a_kernel_that_spills(path: Path, on: Callable[..., Recorded]) -> None:
    trial = record(path, TrialResult("correct", "", kernel()), kind="cuda")
    made = again._compile

    def spilling(*arguments: Any) -> Any:
        return replace(made(*arguments), resources=KernelResources(255, 4096, 4096, 0))

    with pytest.MonkeyPatch.context() as patch, History(path) as history:
        patch.setattr(again, "_compile", spilling)
        notes = again.rerun(history, trial, on(RIGHT)).notes
    assert any(note.startswith("A study here would prune it: It spills 4096 bytes") for note in notes)
    assert template_hash(families.family("naive")) == trial.template_hash


# ----------------------------------------------------------------------------------------------------------- sanitizer


def test_the_sanitizer_runs_after_the_device_is_closed_and_its_findings_fail_the_command(
    cli: Cli, path: Path, on: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = record(path, TrialResult("correct", "", kernel()), kind="cuda")
    device = on(RIGHT)
    asked: list[tuple[str, int, int]] = []

    def looked(job: Job, tool: str, index: int, program: Path) -> Verdict:
        asked.append((tool, index, device.closed))
        clean = tool == "memcheck"
        return Verdict(tool, clean, "0 errors" if clean else "1 hazard", () if clean else ("Race reported",), "")

    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: Path("compute-sanitizer"))
    monkeypatch.setattr(sanitizer, "sanitize", looked)
    done = cli("rerun", str(trial.id), "--sanitize")
    assert done.code == 1
    assert asked == [("memcheck", 0, 1), ("racecheck", 0, 1)]
    assert done.out.endswith("\nmemcheck: clean (0 errors)\nracecheck: NOT CLEAN (1 hazard)\n  Race reported\n")
    assert cli("rerun", str(trial.id), "--sanitize", "--tool", "memcheck").code == 0
    (data,) = json.loads(cli("rerun", str(trial.id), "--sanitize", "--format", "json").out)
    assert [(one["tool"], one["clean"]) for one in data["sanitizer"]] == [("memcheck", True), ("racecheck", False)]


@pytest.mark.parametrize("missing", ["find_sanitizer", "sanitize"])
def test_without_a_working_sanitizer_the_run_itself_still_counts(
    cli: Cli, path: Path, on: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def absent(*arguments: object, **options: object) -> None:
        raise ToolchainError("compute-sanitizer was not found: install it.")

    trial = record(path, TrialResult("correct", "", kernel()), kind="cuda")
    on(RIGHT)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: Path("compute-sanitizer"))
    monkeypatch.setattr(sanitizer, missing, absent)
    done = cli("rerun", str(trial.id), "--sanitize")
    assert done.code == 0
    assert "Not sanitized: compute-sanitizer was not found: install it." in done.out + done.err
