"""The script of ``benchmarks/search/proposals.py``."""

import json

from gemmtune.search.results import read_result_file


def test_every_space_is_searched_and_the_bars_decide(load_benchmark, monkeypatch, tmp_path, capsys):
    script = load_benchmark("search/proposals.py")
    found = script.measure("64x7168x16384", 24)
    assert found["proposals"] == 24
    assert found["valid"] > 1e5
    assert found["ms"]["p5"] <= found["ms"]["median"] <= found["ms"]["p95"]
    out = tmp_path / "proposals.json"

    class Ran:
        stdout = json.dumps(found | {"ms": {"mean": 4.9}, "peak_mb": 499})

    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: Ran)
    monkeypatch.setattr("sys.argv", ["proposals.py", str(out)])
    assert script.main() == 0
    assert set(read_result_file(out).summary["spaces"]) == set(script.SPACES)
    monkeypatch.setattr(script, "MB_BAR", 498)
    assert script.main() == 1
    assert not read_result_file(out).summary["passed"]
