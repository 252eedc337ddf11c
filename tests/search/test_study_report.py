"""The page about a study: every figure is data that Plotly takes, and the page tells the truth, whatever happened."""

import html
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.db import History, KernelData, MeasurementData, StudySpec, TrialResult, VerificationData
from gemmtune.db.filter import Filter
from gemmtune.search.importance import importance
from gemmtune.search.report.facts import headline, leaders
from gemmtune.search.report.material import Material, gather
from gemmtune.search.report.page import _script_data, charts, page, write_report
from gemmtune.search.report.tiles import l2_bytes
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import DatabaseError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

RECORDED = Path(__file__).parents[2] / "benchmarks" / "h200" / "main-job.history.gz"
PLOTLY = pytest.importorskip("plotly")
PROOF = VerificationData(True, 1e-7, 1e-6, 0.1, ("m=512: all",), 1.0)
EVIL = "</script><script>document.title='caught'</script><img src=x onerror=alert(1)> & \"quoted\" 'so'"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """The committed history of the H200."""
    with History(tmp_path_factory.mktemp("report") / "history.db") as history:
        history.merge(RECORDED)
        yield history


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.db") as opened:
        yield opened


def material_of(
    history: History, results: list[tuple[Configuration, TrialResult]], kind: str = "cuda", **changes: object
) -> Material:
    """A study of 512x512x512 with these trials."""
    problem = Gemm(512, 512, 512)
    families = tuple(dict.fromkeys(c.family for c, _ in results)) or ("mma",)
    fields = {
        "problem_json": problem.to_json(), "problem_key": problem.key, "kind": kind, "gpu": gpu("h200"),
        "environment": {"driver": "580"}, "regime": "sustained", "cache": "cold", "families": families,
        "strategy": "tpe", "seed": 0,
    }  # fmt: skip
    study = history.open_study(StudySpec(**{**fields, **changes}))
    for number, (configuration, result) in enumerate(results):
        study.finish(study.claim(number, configuration), result)
    record = history.study(study.id)
    assert record is not None
    return gather(history, record)


def right(us: float, ratio: float | None = None, estimated: bool = False, source: str = "// source\n") -> TrialResult:
    timed = MeasurementData(us, us, us, None if ratio is None else us * ratio, ratio, estimated=estimated)
    kernel = KernelData("t" * 64, source, f"{abs(hash(us)):064x}", "sm_90a", "13.0", {"entry": "k"}, "template", 128)
    return TrialResult("correct", "", kernel, PROOF, timed)


def toys(count: int, family: str = "toy") -> list[Configuration]:
    values = itertools.product((16, 32, 64, 128), (2, 3, 4), ("pad", "xor"))
    return [Configuration.of(family, {"bm": b, "stages": s, "smem": m, "same": 1}) for b, s, m in values][:count]


class Visible(HTMLParser):
    """The text that a reader sees, and the elements there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data


# ---------------------------------------------------------------------------------------------- on recorded H200 trials


def test_every_figure_of_recorded_studies_is_what_plotly_takes(recorded: History) -> None:
    from plotly.graph_objects import Figure

    for study in recorded.studies(limit=None)[::3]:
        shown = charts(gather(recorded, study))
        assert {"history", "importance", "roofline", "outcomes"} <= {c.name for c in shown}
        assert any(c.name.startswith("parallel-") for c in shown)
        assert any(c.name.startswith("tiles-") for c in shown)
        for chart in shown:
            Figure(chart.figure)  # raises for a name or value that Plotly does not have
            json.dumps(chart.figure, allow_nan=False)


def test_the_history_counts_every_trial_and_the_line_never_falls(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    figure = next(c.figure for c in charts(material) if c.name == "history")
    traces = {t["name"]: t for t in figure["data"]}
    dots = sum(len(traces[name]["x"]) for name in material.families if name in traces)
    assert dots + len(traces["failed"]["x"]) == len(material.trials) == 100
    line = traces["best so far"]["y"]
    assert line == sorted(line)
    assert line[-1] == max(t.ratio for t in material.trials if t.ratio is not None and t.outcome == "correct")


def test_a_cell_of_the_tiles_has_the_best_trial_of_that_tile(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    figure = next(c.figure for c in charts(material) if c.name == "tiles-mma")
    heat = figure["data"][0]
    best: dict[tuple[str, str], float] = {}
    for trial in material.ranking:
        traits = material.traits(trial)
        if trial.family == "mma" and traits is not None and trial.timing is not None:
            best.setdefault((str(traits.tile_n), str(traits.tile_m)), trial.timing.ratio)
    shown = {
        (x, y): z for y, row in zip(heat["y"], heat["z"], strict=True) for x, z in zip(heat["x"], row, strict=True)
    }
    assert {cell: z for cell, z in shown.items() if z is not None} == best


def test_winner_and_baseline_stand_at_the_problems_own_intensity(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    traces = {t["name"]: t for t in next(c.figure for c in charts(material) if c.name == "roofline")["data"]}
    problem, timing = material.problem, material.winner.timing
    assert traces["winner"]["x"] == [pytest.approx(2 * 4096**3 / (3 * 2 * 4096**2))]
    assert traces["winner"]["y"] == [pytest.approx(problem.flops / timing.us / 1e6)]
    assert traces["cublas"]["y"] == [pytest.approx(problem.flops / timing.baseline_us / 1e6)]
    (roof,) = (t for name, t in traces.items() if name.startswith("device memory"))
    assert max(roof["y"]) == pytest.approx(989)
    assert all(y <= 4.8 * x * (1 + 1e-9) for x, y in zip(roof["x"], roof["y"], strict=True))


def test_l2_serves_each_tile_its_rows_and_columns_for_the_whole_reduction(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    traits = replace(material.traits(material.winner), tile_m=128, tile_n=256, padded_k=0)
    assert l2_bytes(material.problem, traits) == 32 * 16 * (128 + 256) * 4096 * 2


def test_importance_is_that_of_the_query_for_the_same_trials(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    (asked,) = (found for found in importance(recorded, Filter(study_id=1)) if found.family == "mma")
    assert [k.name for k in material.importance("mma")] == [k.name for k in asked.knobs]
    figure = next(c.figure for c in charts(material) if c.name == "importance")
    (bars,) = figure["data"]
    assert bars["y"] == [k.name for k in reversed(asked.knobs)], "the most important stands on top"
    assert sum(bars["x"]) == pytest.approx(1)
    assert material.importance("simt") == (), "one correct trial tells nothing"


def test_the_knob_that_decides_is_first_everywhere(history: History) -> None:
    results = [(c, right(10.0 if c["smem"] == "xor" else 20 + i)) for i, c in enumerate(toys(24))]
    shown = {c.name: c.figure for c in charts(material_of(history, results))}
    assert shown["importance"]["data"][0]["y"][-1] == "smem"
    assert shown["parallel-toy"]["data"][0]["dimensions"][0]["label"] == "smem"


def test_the_page_is_one_file_that_asks_no_other_host(recorded: History, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_report(recorded, recorded.study(1), path)
    seen = Visible(path.read_text(encoding="utf-8"))
    assert not [
        e for e, a in seen.elements if e in ("link", "img", "iframe", "object") or (e == "script" and "src" in a)
    ]
    policy = next(a["content"] for e, a in seen.elements if e == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert list(tmp_path.iterdir()) == [path], "no scratch file is left"


def test_the_page_tells_who_won_and_why_it_may_be_believed(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    winner = material.winner
    text = Visible(page(material)).text
    assert winner == recorded.study(1).best or winner in material.ranking
    for said in (
        winner.configuration, f"{winner.registers} registers a thread", "147,456 bytes of shared memory", "cublas",
        "throttled by power cap", "right: error", "0.648x", "constexpr int BM = 128", "abandoned", "NVIDIA H200",
    ):  # fmt: skip
        assert said in text, said
    assert "estimate" not in text.split("About")[0]
    assert leaders(material, 5)[0].trial == winner
    assert ("100", "trials") in headline(material)


# -------------------------------------------------------------------------------------------------------- odd studies


def test_a_study_without_a_right_kernel_says_so(history: History) -> None:
    material = material_of(history, [(c, TrialResult("compile", "nvrtc said no")) for c in toys(3)])
    text = Visible(page(material)).text
    assert "No trial of this study ended with a right and timed kernel." in text
    assert "nvrtc said no" in text
    assert {c.name for c in charts(material)} == {"history", "outcomes"}


def test_a_study_without_trials_is_a_page_too(history: History) -> None:
    material = material_of(history, [])
    assert charts(material) == []
    assert "There is none." in Visible(page(material)).text


def test_estimates_are_marked_and_less_time_is_better(history: History) -> None:
    results = [(c, right(30.0 - i, estimated=True)) for i, c in enumerate(toys(12))]
    material = material_of(history, results, kind="emulator")
    shown = {c.name: c.figure for c in charts(material)}
    assert "Nothing was measured" in Visible(page(material)).text
    assert "(estimated)" in shown["history"]["layout"]["yaxis"]["title"]["text"]
    line = next(t for t in shown["history"]["data"] if t["name"] == "best so far")["y"]
    assert line == sorted(line, reverse=True)
    assert shown["parallel-toy"]["data"][0]["line"]["reversescale"], "the bright end is the good one"


def test_families_that_this_version_does_not_know_have_all_but_tiles(history: History) -> None:
    material = material_of(history, [(c, right(10.0 + i, 1.0)) for i, c in enumerate(toys(24, "theirs"))])
    names = {c.name for c in charts(material)}
    assert {"history", "parallel-theirs", "importance"} <= names
    assert "tiles-theirs" not in names


def test_a_knob_that_came_later_has_no_axis(history: History) -> None:
    old = [Configuration.of("toy", {"bm": b}) for b in (16, 32)]
    new = [Configuration.of("toy", {"bm": b, "late": late}) for b in (16, 32) for late in (0, 1)]
    material = material_of(history, [(c, right(10.0 + i, 1.0)) for i, c in enumerate(old + new)])
    figure = next(c.figure for c in charts(material) if c.name == "parallel-toy")
    assert [d["label"] for d in figure["data"][0]["dimensions"]] == ["bm", "speed"]
    page(material)


def test_times_that_are_not_finite_are_left_out(history: History) -> None:
    results = [(toys(3)[0], right(10.0)), (toys(3)[1], right(12.0)), (toys(3)[2], right(float("inf")))]
    material = material_of(history, results)
    figure = next(c.figure for c in charts(material) if c.name == "history")
    assert figure["data"][0]["y"] == [10.0, 12.0]
    page(material)


def test_what_a_trial_says_is_shown_and_never_run(history: History) -> None:
    hostile = Configuration.of("toy", {"bm": "<b>16</b>", "stages": 2})
    results = [
        (hostile, right(10.0, source=f"// {EVIL}\n")),
        (toys(2)[0], TrialResult("compile", EVIL)),
    ]
    text = page(material_of(history, results))
    seen = Visible(text)
    assert not [a for e, a in seen.elements if e == "img"]
    assert len([e for e, _ in seen.elements if e == "script"]) == 3
    assert EVIL.split(" &")[0] in seen.text
    assert html.escape("<b>16</b>") in text


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_data_in_a_script_reads_back_and_cannot_end_it(data: object) -> None:
    text = _script_data(data)
    assert json.loads(text) == data
    assert not re.search("[<>&]", text)


def test_a_file_that_cannot_be_written_is_named_in_one_sentence(recorded: History, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"cannot be written .*: choose another place\.$"):
        write_report(recorded, recorded.study(1), tmp_path / "missing" / "page.html")


def test_without_plotly_the_cure_is_named(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(ToolchainError, match=r"pip install 'gemmtune\[report\]'"):
        page(material_of(history, [(toys(1)[0], right(10.0))]))
