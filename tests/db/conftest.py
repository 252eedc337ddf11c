from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmtune.db import (
    History,
    KernelData,
    MeasurementData,
    Study,
    StudySpec,
    TrialResult,
    VerificationData,
)
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu


def spec(problem: Gemm | None = None, kind: str = "cuda", device: str = "h200", **changes: Any) -> StudySpec:
    problem = problem or Gemm(512, 512, 512)
    fields: dict[str, Any] = {
        "problem_json": problem.to_json(),
        "problem_key": problem.key,
        "kind": kind,
        "gpu": gpu(device),
        "environment": {"driver": "580", "cuda": "13.0"},
        "regime": "sustained",
        "cache": "cold",
        "families": ("mma",),
        "strategy": "tpe",
        "seed": 0,
    }
    return StudySpec(**{**fields, **changes})


def configuration(i: int, family: str = "mma") -> Configuration:
    return Configuration.of(family, {"bm": i, "stages": 3})


def kernel(i: int) -> KernelData:
    return KernelData(
        template_hash="t" * 64,
        template_text="template",
        source=f"// kernel {i}\n",
        cubin_sha256=f"{i:064x}",
        arch="sm_90a",
        nvrtc="13.0",
        recipe={"entry": f"k{i}", "block": (256, 1, 1)},
        registers=128,
        spill_bytes=0,
        shared_bytes=65536,
    )


def measurement(ratio: float = 1.0, **changes: Any) -> MeasurementData:
    fields: dict[str, Any] = {
        "us": 10 / ratio,
        "us_low": 9.9 / ratio,
        "us_high": 10.1 / ratio,
        "baseline_us": 10.0,
        "ratio": ratio,
        "ratio_low": 0.99 * ratio,
        "ratio_high": 1.01 * ratio,
        "samples": (9.5, 10.25),
        "baseline_samples": (10.0, 10.75),
        "baseline_name": "cublas",
        "clock_mhz": 1980.0,
        "counters": {"sectors": 4.0},
    }
    return MeasurementData(**{**fields, **changes})


def estimate(us: float) -> MeasurementData:
    return MeasurementData(us, us, us, estimated=True)


PROOF = VerificationData(True, 1e-7, 1e-6, 0.1, ("m=512: all",), 1.0)


def correct(i: int, ratio: float = 1.0) -> TrialResult:
    return TrialResult("correct", "", kernel(i), PROOF, measurement(ratio), {"compile": 0.1, "measure": 0.02})


def failed(outcome: str, detail: str) -> TrialResult:
    return TrialResult(outcome, detail, seconds={"compile": 0.1})


def run(study: Study, number: int, result: TrialResult, config: int | None = None, family: str = "mma") -> int:
    trial_id = study.claim(number, configuration(number if config is None else config, family))
    study.finish(trial_id, result)
    return trial_id


def contents(history: History) -> list[str]:
    """Everything that travels, free of the order of rows."""
    from gemmtune.db.transfer import rows

    with history.reading() as connection:
        return sorted(map(repr, rows(connection)))


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Builders of specs, results and so on."""
    return SimpleNamespace(
        spec=spec, configuration=configuration, kernel=kernel, measurement=measurement, estimate=estimate, proof=PROOF,
        correct=correct, failed=failed, run=run, contents=contents,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History(path) as opened:
        yield opened
