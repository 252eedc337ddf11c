"""The script of ``benchmarks/model.py`` at small sizes on the CPU: its parts, the file they join, its shape file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gemmtune.search.results import read_result_file  # noqa: E402
from gemmtune.search.shape_file import read_problems  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::gemmtune.torch.PackWarning")

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, load_benchmark: Callable[[str], Any]) -> Any:
    """Runs the script with arguments."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = load_benchmark("model.py")

    def main(*arguments: Any) -> None:
        monkeypatch.setattr("sys.argv", ["model.py", *map(str, arguments)])
        module.main()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other work, threads that share small sums mostly wait for each other
    yield main
    torch.set_num_threads(threads)
    for name in ("small_transformers", "turns"):
        sys.modules.pop(name, None)


def test_parts_join_one_file_and_two_files_join(run: Any, write: Any, small_pack: Any, tmp_path: Path) -> None:
    pack, first, second = write(small_pack), tmp_path / "first.json", tmp_path / "second.json"
    small = ("--tiny", "--eager", "--steps", 3, "--seeds", 2)
    run(pack, first, *small, "--parts", "values")
    run(pack, first, *small, "--parts", "training")
    run(pack, second, *small, "--parts", "speed")
    run("-", first, "--join", second)
    result = read_result_file(first)
    assert result.estimated
    for name in ("tiny", "tiny-gpt2"):
        found = result.summary[name]
        assert set(found) == {"values", "speed", "training"}
        assert found["values"]["passed"]
        assert found["values"]["pack"]["worst_error_ratio"] == 1  # torch multiplies in both
        assert set(found["speed"]["decode 2"]["us"]) == {"plain", "pack"}
        assert found["training"]["overlay"]
        assert found["training"]["largest_distance"] == [0, 0]
    assert result.summary["tiny-gpt2"]["values"]["pack"]["not_judged"] == [
        f"blocks.{i}.attention.k.bias" for i in range(2)
    ]


def test_files_of_another_protocol_do_not_join(run: Any, write: Any, small_pack: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run(write(small_pack), out, "--tiny", "--eager", "--steps", 1, "--seeds", 1, "--parts", "training")
    other = tmp_path / "other.json"
    other.write_text(out.read_text().replace("2 turns", "5 turns"))
    with pytest.raises(SystemExit, match=r"has the protocol .* write to another file"):
        run("-", out, "--join", other)


def test_the_shapes_of_both_models_need_no_gpu_and_are_those_committed(run: Any, tmp_path: Path) -> None:
    run("-", tmp_path / "shapes.toml", "--record")
    found = read_problems(tmp_path / "shapes.toml")
    assert found is not None
    assert found == read_problems(FOLDER / "model-shapes.toml")
    problems = {w.problem.key for w in found}
    for tokens in (1, 16, 64, 4096):  # decoding, and prefill as well as a training step
        assert f"gemm {tokens}x14336x4096 bf16 nt" in problems
        assert f"gemm {tokens}x3072x768 bf16 nt epilogue=bias" in problems
    assert "gemm 4096x4096x14336 bf16 nn" in problems
    assert "gemm 14336x4096x4096 bf16 tn" in problems
