"""Recorded spaces in every format: what is written is what is read, and what others publish about theirs holds.

The schema beside this file is the published one of T4 results 1.0.0 (TuningSchema; Kernel Tuner ships it unchanged).
"""

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import ConfigurationError, RecordingError, UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recorded import FORMATS, Recorded, Recording, read_recording, write_recording
from gemmtune.space.recorded.kernel_tuner import kernel_tuner_data, read_kernel_tuner
from gemmtune.space.recorded.t4 import read_t4, t4_data

SCHEMA = Path(__file__).with_name("t4-results-schema-1.0.0.json")
OUTCOMES = ("correct", "pruned", "compile", "launch", "timeout", "out_of_memory", "wrong", "unstable", "abandoned")
KNOBS = (Parameter("bm", (16, 32, 64), "rows"), Parameter("order", ("row", "column")), Parameter("pad", (0, 8)))


@st.composite
def recordings(draw):
    """Recordings of one family, some rows of every outcome, with and without intervals, ratios and details."""
    every = [
        Configuration.of("toy", {"bm": bm, "order": order, "pad": pad})
        for bm in KNOBS[0].values
        for order in KNOBS[1].values
        for pad in KNOBS[2].values
    ]
    chosen = draw(st.lists(st.sampled_from(every), min_size=1, unique_by=lambda c: c.key))
    times = st.integers(1, 10**6).map(lambda n: n / 8)  # exact in milliseconds too, or nearly
    rows = []
    for configuration in chosen:
        outcome = draw(st.sampled_from(OUTCOMES))
        timed = outcome in ("correct", "abandoned")
        us = draw(times) if timed else None
        interval = timed and draw(st.booleans())
        rows.append(
            Recorded(
                configuration,
                outcome,
                us,
                us_low=us * 0.9 if us and interval else None,
                us_high=us * 1.1 if us and interval else None,
                ratio=draw(st.none() | st.floats(0.1, 10)) if timed else None,
                detail=draw(st.sampled_from(("", 'It "failed", once; é.'))),
                registers=draw(st.none() | st.integers(16, 255)),
                seconds=draw(st.just({}) | st.just({"compile": 0.25, "measure": 0.5})),
            )
        )
    problem = draw(st.none() | st.just(Gemm(64, 32, 16, "bf16")))
    card = draw(st.none() | st.just(gpu("h200")))
    return Recording(
        "toys",
        "NVIDIA H200",
        {"toy": KNOBS},
        tuple(rows),
        "made up",
        "none",
        problem,
        card,
        environment={"driver": "1"},
    )


def same(a: Recorded, b: Recorded) -> bool:
    figures = all(
        (x is None and y is None) or math.isclose(x, y, rel_tol=1e-12)
        for x, y in ((a.us, b.us), (a.us_low, b.us_low), (a.us_high, b.us_high), (a.ratio, b.ratio))
    )
    rest = [(r.configuration, r.outcome, r.detail, r.registers) for r in (a, b)]
    return figures and rest[0] == rest[1]


@settings(max_examples=30, deadline=None)
@given(recordings(), st.sampled_from(FORMATS), st.sampled_from(("", ".gz")))
def test_what_is_written_is_read_back(tmp_path_factory, recording, form, ending):
    path = tmp_path_factory.mktemp("recording") / f"toys.json{ending}"
    write_recording(recording, path, form)
    read = read_recording(path)
    assert len(read) == len(recording)
    assert all(same(a, b) for a, b in zip(read.rows, recording.rows, strict=True))
    assert read.name == "toys"
    if form == "csv":
        return  # a table of rows alone
    assert (read.problem, read.gpu, read.environment) == (recording.problem, recording.gpu, recording.environment)
    assert [(p.name, p.values) for p in read.parameters["toy"]] == [(p.name, p.values) for p in KNOBS]
    assert (read.source, read.protocol, read.device_name) == (recording.source, recording.protocol, "NVIDIA H200")
    if form == "json":
        assert read == recording


@settings(max_examples=30, deadline=None)
@given(recordings())
def test_t4_results_satisfy_the_published_schema(recording):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(json.dumps(t4_data(recording))))


def test_the_same_recording_is_written_to_the_same_bytes(tmp_path):
    recording = small()
    for name in ("a.json.gz", "b.json.gz"):
        write_recording(recording, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def small(**fields) -> Recording:
    rows = tuple(
        Recorded(Configuration.of("toy", {"bm": bm, "order": "row", "pad": 0}), "correct", float(bm)) for bm in (16, 32)
    )
    return Recording("small", "NVIDIA H200", {"toy": KNOBS}, fields.pop("rows", rows), **fields)


CACHE = {
    "device_name": "NVIDIA A100-PCIE-40GB",
    "kernel_name": "vector add",
    "problem_size": [10000000],
    "tune_params_keys": ["block_size_x", "fast", "scale"],
    "tune_params": {"block_size_x": [64, 128, 96], "fast": [True, False], "scale": [0.5, 1.5]},
    "objective": "time",
    "cache": {
        "64,True,0.5": {
            "block_size_x": 64, "fast": True, "scale": 0.5, "time": 0.125, "times": [0.125, 0.25], "GFLOP/s": 4.0,
            "compile_time": 440.0, "verification_time": 0.0, "benchmark_time": 2.0, "strategy_time": 0.0,
            "framework_time": 1.0, "timestamp": "2025-01-01 00:00:00+00:00",
        },
        "128,False,1.5": {
            "block_size_x": 128, "fast": False, "scale": 1.5, "time": "CompilationFailedConfig",
            "compile_time": 440.0, "verification_time": 0.0, "benchmark_time": 0.0, "strategy_time": 0.0,
            "framework_time": 0.0,
        },
        "128,True,1.5": {"block_size_x": 128, "fast": True, "scale": 1.5, "__error__": "InvalidConfig"},
        "64,False,1.5": {"block_size_x": 64, "fast": False, "scale": 1.5, "time": "RuntimeFailedConfig"},
        "128,False,0.5": {"block_size_x": 128, "fast": False, "scale": 0.5, "time": 1e20},
    },
}  # fmt: skip


def test_a_cache_file_of_kernel_tuner_is_understood():
    read = read_kernel_tuner(CACHE, "vectors")
    assert [row.outcome for row in read.rows] == ["correct", "compile", "pruned", "launch", "launch"]
    first = read.rows[0]
    assert str(first.configuration) == "vector_add block_size_x=64 fast=True scale=0.5"
    assert first.us == 125.0
    assert first.seconds["compile"] == pytest.approx(0.44)
    assert read.parameters["vector_add"][0].values == (64, 128, 96)
    assert read.optimum == 125.0


def test_a_cache_file_written_back_says_what_it_said():
    written = kernel_tuner_data(read_kernel_tuner(CACHE, "vectors"))
    assert {k: v for k, v in written.items() if k in CACHE and k != "cache"} == {
        k: v for k, v in CACHE.items() if k != "cache"
    }
    assert list(written["cache"]) == list(CACHE["cache"])
    for key in ("64,True,0.5", "128,False,1.5"):
        entry = written["cache"][key]
        assert {k: v for k, v in entry.items() if not k.startswith("gemmtune_")} == CACHE["cache"][key]


def test_a_cache_file_that_was_left_open_is_read(tmp_path):
    path = tmp_path / "open.json"
    path.write_text(json.dumps(CACHE)[: -len("}}")] + ",\n")
    assert len(read_recording(path)) == len(CACHE["cache"])


T4 = {
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "milliseconds"},
    "results": [
        {
            "timestamp": "2025-01-01", "configuration": {"x": 1, "mode": "fast"}, "objectives": ["time"],
            "times": {"compilation": 500.0, "runtimes": [2.0]}, "invalidity": "correct", "correctness": 1,
            "measurements": [{"name": "time", "value": 2.0, "unit": "ms"}, {"name": "W", "value": 3, "unit": ""}],
        },
        {
            "configuration": {"x": 2, "mode": "slow"}, "times": {}, "invalidity": "timeout", "correctness": 1,
        },
        {
            "configuration": {"x": 4, "mode": "slow"}, "times": {}, "invalidity": "correctness", "correctness": 0,
        },
    ],
}  # fmt: skip


def test_t4_results_of_others_are_understood_and_written_back():
    read = read_t4(T4, "others")
    assert [(r.outcome, r.us) for r in read.rows] == [("correct", 2000.0), ("timeout", None), ("wrong", None)]
    assert read.rows[0].seconds == {"compile": 0.5}
    assert [p.values for p in read.parameters["kernel"]] == [(1, 2, 4), ("fast", "slow")]
    written = t4_data(read)
    assert [r["invalidity"] for r in written["results"]] == ["correct", "timeout", "correctness"]
    assert written["results"][0]["times"] == {"compilation_time": 500.0, "runtimes": [2.0]}
    assert {"name": "W", "value": 3, "unit": ""} in written["results"][0]["measurements"]
    assert read_t4(written, "others").rows == tuple(read.rows)


TABLE = {
    "source": "made up", "device_name": "NVIDIA GeForce RTX 3090", "kernel_name": "K", "objective": "time",
    "tune_params_keys": ["x"], "tune_params": {"x": [4, 2]}, "unit": "ms",
}  # fmt: skip


def test_compact_tables_may_have_failures_and_values_beyond_their_lists(tmp_path):
    path = tmp_path / "k.json.gz"
    rows = [[4, 0.5], [2, None], [8, "InvalidConfig"], [1, float("inf")], [4, 9.0]]
    path.write_bytes(gzip.compress(json.dumps({**TABLE, "rows": rows}).encode()))
    read = read_recording(path)
    assert [(r.configuration["x"], r.us) for r in read.rows] == [(4, 500.0), (2, None), (8, None), (1, None)]
    assert read.parameters["K"][0].values == (4, 2, 1, 8)
    assert read.name == "k"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no JSON object"),
        ("{}", "is no recorded space"),
        (json.dumps({**TABLE, "rows": []}), "holds no configuration"),
        (json.dumps({**TABLE, "rows": [[1, 2, 3]]}), "row of 3 fields instead of 2"),
        (json.dumps({**TABLE, "rows": [[1, 2]], "unit": "fortnights"}), "times in 'fortnights'"),
        (json.dumps({**TABLE, "rows": [[[1], 2]]}), r"value \[1\]"),
        (json.dumps({**T4, "schema_version": "2.0.0"}), "T4 results 2.0.0"),
        (json.dumps({**T4, "results": [{**T4["results"][0], "measurements": []}]}), "no time for 'kernel x=1"),
        (json.dumps({**T4, "results": [{"configuration": {}}]}), "lacks or misnames a field"),
        (json.dumps({**CACHE, "cache": {"1": {"block_size_x": 1}}}), "lacks or misnames a field"),
        (json.dumps({"format": "gemmtune-recording", "schema": 99}), "schema 99"),
        ("family,outcome,x\n", "lacks the columns us"),
        ("family,outcome,us,us_low,us_high,ratio,registers,detail,knob.x\nk,correct,fast,,,,,,1\n", "no number"),
    ],
)
def test_what_is_no_recording_is_told_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecordingError, match=message):
        read_recording(path)


def test_files_that_are_missing_cut_off_or_no_text_are_told(tmp_path):
    with pytest.raises(RecordingError, match="cannot be read"):
        read_recording(tmp_path / "none.json")
    whole = gzip.compress(json.dumps(CACHE).encode())
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordingError, match=r"cut off|cannot be unpacked"):
        read_recording(tmp_path / "cut.json.gz")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordingError, match="is no text"):
        read_recording(tmp_path / "noise")
    with pytest.raises(RecordingError, match="cannot be written"):
        write_recording(small(), tmp_path / "noise" / "below.json")
    with pytest.raises(UnknownNameError, match="choose one of json"):
        write_recording(small(), tmp_path / "x", "xml")


def test_a_recording_must_fit_its_knobs_and_be_of_one_family_to_be_exchanged():
    stranger = Recorded(Configuration.of("toy", {"bm": 17, "order": "row", "pad": 0}), "correct", 1.0)
    with pytest.raises(RecordingError, match="does not fit"):
        small(rows=(stranger,))
    with pytest.raises(RecordingError, match="twice"):
        small(rows=small().rows * 2)
    other = Recorded(Configuration.of("other", {"x": 1}), "correct", 1.0)
    two = Recording("two", "", {"toy": KNOBS, "other": (Parameter("x", (1,)),)}, (*small().rows, other))
    for write in (kernel_tuner_data, t4_data):
        with pytest.raises(RecordingError, match="choose one with --family"):
            write(two)
    assert len(two.of_family("other")) == 1
    with pytest.raises(UnknownNameError, match="it has toy, other"):
        two.of_family("third")


def test_ratios_rank_where_every_correct_row_has_one_and_the_beaten_stand_beside_them():
    c = [Configuration.of("toy", {"bm": 16, "order": o, "pad": p}) for o in ("row", "column") for p in (0, 8)]
    rows = (
        Recorded(c[0], "correct", 10.0, ratio=2.0),
        Recorded(c[1], "correct", 9.0, ratio=2.2),
        Recorded(c[2], "abandoned", 60.0),
        Recorded(c[3], "wrong"),
    )
    recording = small(rows=rows)
    assert recording.objective(rows[0]) == pytest.approx(0.5)
    assert recording.optimum == pytest.approx(1 / 2.2)
    assert recording.objective(rows[2]) == pytest.approx(60 / 19.9)
    assert recording.objective(rows[3]) is None
    assert small().optimum == 16.0
    with pytest.raises(RecordingError, match="correct and has a time"):
        small(rows=rows[2:]).optimum  # noqa: B018
    with pytest.raises(ConfigurationError, match="not in the recording"):
        recording.find(Configuration.of("toy", {}))
