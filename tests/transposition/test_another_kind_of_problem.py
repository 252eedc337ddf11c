"""Nothing outside a kind of problem assumes a GEMM: one from outside, with its family, goes through a study."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gemmtune.db import History
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.pack.export import export_pack
from gemmtune.search.study import tune
from gemmtune.search.why import why
from gemmtune.space import families
from gemmtune.space.errors import PackError, ToolchainError
from gemmtune.space.gpu import gpu


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module as a user's program imports it: by name, so that the worker finds it too."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import transposition

    monkeypatch.setitem(families.FAMILIES, "transposition", transposition.Strips())
    yield transposition
    sys.modules.pop("transposition", None)


def test_a_kind_from_outside_is_searched_proved_estimated_and_remembered(outside: ModuleType, tmp_path: Path) -> None:
    problem = outside.Transposition(50, 70)
    with History(tmp_path / "h.db") as history:
        (result,) = tune(problem, "emulator:h200", trials=10, history=history, workers=1)
        assert result.outcomes == {"correct": 3}, history.failures()
        assert all(record.us and record.estimated for record in result.best)
        assert [r.problem_key for r in history.best()] == [problem.key] * 3
        assert "strips of 64 are twice the 20 columns" in "".join(
            why("transposition side=64", outside.Transposition(50, 20), gpu("h200"), history)
        )
        with pytest.raises(PackError, match="a pack serves GEMMs, and this is a transposition"):
            export_pack(tmp_path / "x.kpack", history)
    assert not (tmp_path / "x.kpack").exists()
