"""The script of ``benchmarks/layer_host.py`` at small sizes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gemmtune.search.results import read_result_file  # noqa: E402


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, load_benchmark: Callable[[str], Any]) -> Any:
    """Runs the script with arguments, over few layers."""
    script = load_benchmark("layer_host.py")
    monkeypatch.setattr(script, "LAYERS", 2)
    monkeypatch.setattr(script, "DIRTY_MIB", (0, 1))

    def main(*arguments: Any) -> None:
        monkeypatch.setattr("sys.argv", ["layer_host.py", *map(str, arguments)])
        script.main()

    threads = torch.get_num_threads()
    yield main
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore::gemmtune.torch.PackWarning")
def test_layers_are_timed_in_turns_and_written(run: Any, write: Any, small_pack: Any, tmp_path: Path) -> None:
    file = tmp_path / "layer_host.json"
    run(write(small_pack), file, "--shape", "4x16x32", "--turns", 3)
    result = read_result_file(file)
    assert result.estimated  # no GPU's layers
    assert set(result.summary["us"]) == {"0 MiB", "1 MiB"}
    for us in result.summary["us"].values():
        assert set(us) == {"nn.Linear", "swapped", "again", "more"}
        assert set(us["more"]) == {"swapped", "again"}


def test_a_shape_that_a_kernel_serves_is_refused(
    run: Any, host: Any, launches: Any, maker: Any, write: Any, tmp_path: Path
) -> None:
    from gemmtune.space.gemm import Gemm

    maker.add(Gemm(8, 32, 16, "bf16", epilogue="bias"), 1.2, us=1000.0)
    with pytest.raises(SystemExit, match="serves 8x32x16 in eager code: take another shape"):
        run(write(maker.data()), tmp_path / "out.json", "--shape", "8x32x16", "--turns", 1)
    assert not (tmp_path / "out.json").exists()
