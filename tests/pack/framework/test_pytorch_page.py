"""The page "Use a pack in PyTorch": its code runs as it stands, its names exist."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.filterwarnings("ignore::gemmtune.torch.PackWarning")
def test_the_code_blocks_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gemmtune.search.shape_file import read_problems

    shutil.copy(ROOT / "benchmarks" / "h200" / "main-job.kpack.zip", tmp_path / "h200.kpack")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    assert len(BLOCKS) >= 7
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/pytorch.md block {number}", "exec"), names)
    assert "2 of 2 linear layers use the pack" in capsys.readouterr().out
    recorded = read_problems("model.toml")
    assert recorded is not None
    assert {w.problem.layout for w in recorded} >= {"nt", "tn"}


def test_every_name_of_ours_on_the_page_exists() -> None:
    for name in set(re.findall(r"gemmtune\.torch\.(\w+)", PAGE)):
        assert hasattr(gemmtune.torch, name), name
    for function in (gemmtune.torch.use, gemmtune.torch.optimize_, gemmtune.torch.route.__init__):
        assert {"strict", "least_ratio"} <= set(inspect.signature(function).parameters)
