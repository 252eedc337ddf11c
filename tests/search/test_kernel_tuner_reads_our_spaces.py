"""Kernel Tuner's own simulation mode on cache files that gemmtune writes (skipped where it is not installed)."""

import numpy as np
import pytest

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.recorded import Recorded, RecordedSpace, Recording, read_recording, write_recording

kernel_tuner = pytest.importorskip("kernel_tuner", reason="needs pip install kernel_tuner")


@pytest.fixture(scope="module")
def peers(load_benchmark):
    return load_benchmark("search/peers.py")


@pytest.fixture(scope="module")
def space():
    """90 of 120 configurations, some of them failures."""
    knobs = (Parameter("x", tuple(range(10))), Parameter("y", (1, 2, 4)), Parameter("mode", ("a", "b", "c", "d")))
    rows = []
    for x in range(10):
        for y in (1, 2, 4):
            for mode in "abc":
                configuration = Configuration.of("kernel", {"x": x, "y": y, "mode": mode})
                bad = x == 3 and mode == "b"
                us = None if bad else 10.0 + abs(x - 6) + y + "abc".index(mode)
                rows.append(Recorded(configuration, "launch" if bad else "correct", us))
    return RecordedSpace(Recording("small", "NVIDIA H200", {"kernel": knobs}, tuple(rows)))


def test_brute_force_in_simulation_mode_returns_every_row_of_our_export(peers, space, tmp_path):
    path = tmp_path / "cache.json"
    write_recording(space.recording, path, "kernel_tuner")
    visited = peers.simulate(space, path, "brute_force", 0, None)
    expected = [space.recording.objective(row) for row in space.recording.rows]
    assert sorted(visited, key=repr) == sorted(expected, key=repr)
    assert read_recording(path).rows[0].us == space.recording.rows[0].us  # and left the file as it was


@pytest.mark.parametrize("strategy", ["genetic_algorithm", "diff_evo", "bayes_opt"])
def test_its_strategies_become_curves_beside_ours(peers, space, strategy):
    told = peers.compare(space, strategy, 2, 30, 0)
    assert told.strategy == f"kernel_tuner {strategy}"
    assert told.curves.shape == (2, 30)
    assert (np.diff(told.curves, axis=1) >= 0).all()
    assert (told.curves[:, -1] > 0.5).all()


def test_its_t4_output_is_read(space, tmp_path):
    from kernel_tuner.file_utils import store_output_file

    timings = dict.fromkeys(
        ("compile_time", "benchmark_time", "framework_time", "strategy_time", "verification_time"), 1.0
    )
    results = [
        {"x": 1, "mode": "a", "time": 0.5, "times": [0.5], **timings},
        {"x": 2, "mode": "b", "time": "x", "__error__": kernel_tuner.util.CompilationFailedConfig(), **timings},
    ]
    results[1]["__error__"] = kernel_tuner.util.CompilationFailedConfig()
    store_output_file(str(tmp_path / "out.json"), results, {"x": [1, 2], "mode": ["a", "b"]})
    read = read_recording(tmp_path / "out.json")
    assert [(row.outcome, row.us) for row in read.rows] == [("correct", 500.0), ("compile", None)]
    assert read.rows[0].seconds["compile"] == pytest.approx(1e-3)
