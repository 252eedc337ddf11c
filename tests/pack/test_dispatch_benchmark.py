"""What the script of ``benchmarks/dispatch.py`` makes of sizes held out: its figures, bars and files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gemmtune.pack.regret import HeldOut
from gemmtune.space.gemm import Gemm


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "dispatch.py"
    spec = importlib.util.spec_from_file_location("dispatch_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
