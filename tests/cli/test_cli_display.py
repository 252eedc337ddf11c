"""Progress: plain lines where nobody watches, a redrawn block on a terminal, the same facts in both."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from gemmtune.cli import display, output
from gemmtune.db.records import TrialRecord
from gemmtune.search.study import StudyResult
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

PROBLEM = Gemm(512, 512, 512)
H200 = gpu("h200")
CONFIGURATION = "mma bm=64 bn=32 bk=64 wm=32 wn=32 stages=3 smem=pad ldmatrix=0 fragments=2 unroll=1 splits=2 group=1"


def record(number: int, us: float, *, estimated: bool = True) -> TrialRecord:
    times: dict[str, Any] = {"us": us, "us_low": us, "us_high": us, "estimated": estimated}
    if not estimated:
        times |= {
            "us_low": 0.99 * us,
            "us_high": 1.01 * us,
            "baseline_us": 10.0,
            "ratio": 10.0 / us,
            "baseline": "cublas",
        }
    return TrialRecord(
        number, str(number), number, 1, "done", f"{CONFIGURATION} n={number}", "", "mma", "correct", "", "emulator",
        H200, {}, "sustained", "cold", PROBLEM.key, PROBLEM.to_json(), rel_error=1e-4, error_bound=4e-3, **times,
    )  # fmt: skip


def play(observer: display.Progress, *, estimated: bool = True, interrupted: bool = False) -> None:
    device: Any = SimpleNamespace(name="emulator:h200" if estimated else "cuda:0", gpu=H200, estimates=estimated)
    observer.study_started(PROBLEM, device, 3172688, 60200000, 20, 5)
    records = []
    for i, us in enumerate((12.0, 8.0, 9.0, 7.5), 6):
        records.append(record(i, us, estimated=estimated))
        best = min(records, key=lambda r: r.us or 0)
        observer.trial_finished(records[-1], best, i, 20, {"correct": i - 1, "wrong": 1})
    if not estimated:
        observer.finals_started(PROBLEM, 3)
    best_first = sorted(records, key=lambda r: r.us or 0)
    observer.study_finished(
        StudyResult(
            PROBLEM, 1, best_first, {"correct": 8, "wrong": 1}, 9, 5, interrupted, 65.0, 3172688, 60200000, estimated
        )
    )


def test_plain_lines_tell_each_new_best_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with display.display(2, None) as progress:
        play(progress)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "\x1b" not in out
    assert "\r" not in out
    assert lines[0] == "[1/2] gemm 512x512x512 bf16 nt on emulator:h200 (NVIDIA H200, times are estimates)"
    assert "20 trials of 3,172,688 valid configurations (60,200,000 before the rules); 5 done before" in lines[1]
    assert [line.split("new best ")[1].split(" us")[0] for line in lines if "new best" in line] == [
        "12.0",
        "8.00",
        "7.50",
    ]
    assert "8/20  7 correct, 1 wrong" in out
    assert "Best of gemm 512x512x512 bf16 nt, estimated" in out
    first = next(line for line in lines if line.startswith("1 "))
    assert first.split()[:6] == ["1", "7.50", "est.", "35.8", "-", "1.0e-04/4.0e-03"]
    assert first.endswith("n=9")
    assert lines[-1] == "9 trials in 1:05, 5 of them before this run: 8 correct, 1 wrong."


def test_a_resumed_study_announces_no_best_of_an_earlier_run(capsys: pytest.CaptureFixture[str]) -> None:
    device: Any = SimpleNamespace(name="emulator:h200", gpu=H200, estimates=True)
    progress = display.Progress(1, None)
    progress.study_started(PROBLEM, device, 100, 200, 20, 5)
    earlier = record(2, 3.68)
    progress.trial_finished(record(6, 9.0), earlier, 6, 20, {"correct": 6})
    progress.trial_finished(record(7, 8.0), earlier, 7, 20, {"correct": 7})
    assert "new best" not in capsys.readouterr().out
    better = record(8, 3.5)
    progress.trial_finished(better, better, 8, 20, {"correct": 8})
    progress.trial_finished(record(9, 7.0), better, 9, 20, {"correct": 9})
    told = [line for line in capsys.readouterr().out.splitlines() if "new best" in line]
    assert len(told) == 1
    assert told[0].startswith("  8/20  new best 3.50 us")


def test_measured_studies_show_ratio_interval_and_finals(capsys: pytest.CaptureFixture[str]) -> None:
    with display.display(1, None) as progress:
        play(progress, estimated=False)
    out = capsys.readouterr().out
    assert "est." not in out
    assert "estimated" not in out
    assert "1.33x cublas" in out
    assert "Best of gemm 512x512x512 bf16 nt (ratio: time of cublas / ours)" in out
    assert "finals of the best 3" in out
    assert "7.425-7.575" in out


def test_an_interrupted_study_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with display.display(1, None) as progress:
        play(progress, interrupted=True)
    assert "Stopped by Ctrl-C after 9 trials" in capsys.readouterr().out


def test_a_terminal_gets_one_block_redrawn() -> None:
    from rich.console import Console

    progress = display.LiveProgress(3, None)
    progress.budget, progress.done = 20, 5
    progress.best, progress.counts = record(4, 8.25), {"correct": 4, "out_of_memory": 1}
    screen = io.StringIO()
    Console(file=screen, width=80).print(progress._render())
    text = screen.getvalue()
    assert "5 of 20 trials" in text
    assert "4 correct, 1 out of memory" in text
    assert "8.25 us est., ratio -" in text
    assert "n=4" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream=None: True)
    progress = display.display(1, None)
    assert isinstance(progress, display.LiveProgress)

    def die_in_a_study() -> None:
        with progress:
            device: Any = SimpleNamespace(name="cuda:0", gpu=H200, estimates=False)
            progress.study_started(PROBLEM, device, 10, 20, 5, 0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        die_in_a_study()
    assert progress._live is None


def test_time_left_follows_pace_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    device: Any = SimpleNamespace(name="cuda:0", gpu=H200, estimates=False)
    progress = display.Progress(1, None)
    progress.study_started(PROBLEM, device, 10, 20, 10, 2)
    assert progress.left_text() == "time left unknown"
    now[0] += 8
    progress.done = 6
    assert progress.seconds_left() == pytest.approx(8.0)
    assert progress.fraction() == pytest.approx(0.6)

    limited = display.Progress(2, 20.0)  # two studies share 20 s
    limited.study_started(PROBLEM, device, 1000, 2000, 100, 0)
    limited.done = 10
    now[0] += 4
    assert limited.seconds_left() == pytest.approx(6.0)
    assert limited.fraction() == pytest.approx(0.4)
    now[0] += 80
    assert limited.seconds_left() == 0.0


def test_a_study_bounded_by_time_alone_counts_no_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    device: Any = SimpleNamespace(name="cuda:0", gpu=H200, estimates=False)
    progress = display.Progress(1, 600.0)
    progress.study_started(PROBLEM, device, 4770819, 173457408, 4770819, 0)
    best = record(1, 8.0, estimated=False)
    for i in range(1, 101):
        now[0] += 3
        progress.trial_finished(record(i, 9.0, estimated=False), best, i, 4770819, {"correct": i})
    lines = capsys.readouterr().out.splitlines()
    assert "as many trials as fit into 10:00, of 4,770,819 valid configurations" in lines[1]
    assert "/4770819" not in "".join(lines)
    assert lines[2].startswith("  1  new best 8.000 us")
    assert [line.split()[0] for line in lines[3:]] == ["20", "40", "60", "80", "100"]
    assert lines[-1] == "  100  100 correct, 5:00 left"


def test_columns_that_do_not_fit_go_below_their_row() -> None:
    columns = [
        output.Column("problem"),
        output.Column("us", right=True),
        output.Column("naive us", right=True),
        output.Column("configuration", long=True),
    ]
    rows = [["gemm 512x512x512", "7.5", "66.5", CONFIGURATION], ["gemm 8x8x8", "12", "-", "short"]]
    assert output.fitted(columns, rows, 300) == output.lines_of(columns, rows)
    lines = output.fitted(columns, rows, 60)
    assert lines[:2] == ["problem            us  naive us", "gemm 512x512x512  7.5      66.5"]
    assert all(len(line) < 60 for line in lines)
    assert " ".join(line.strip() for line in lines[2:-2]) == CONFIGURATION
    assert lines[-2:] == ["gemm 8x8x8         12         -", "    short"]
    narrow = output.fitted(columns, rows, 25)
    assert narrow[:3] == ["problem            us", "gemm 512x512x512  7.5", "    naive us 66.5"]
    assert narrow[-2:] == ["gemm 8x8x8         12", "    short"]


def test_numbers_as_people_read_them() -> None:
    assert output.microseconds(None) == "-"
    assert output.microseconds(1580.4) == "1580"
    assert output.microseconds(7.3, estimated=False) == "7.300"
    assert output.microseconds(7.3012, estimated=True) == "7.30 est."
    assert output.microseconds(12345.6, estimated=True) == "12346 est."
    assert [output.digits(x, 3) for x in (0.12345, 61.0, 99.96, 123.4)] == ["0.123", "61.0", "100", "123"]
    assert output.ratio(15.123, estimated=True) == "15.1x est."
    assert output.ratio(None) == "-"
    assert output.ratio(1.0349) == "1.03x"
    assert output.small(1.25e-7) == "1.2e-07"
    assert [output.duration(s) for s in (8.2, 59.6, 125, 3725)] == ["8 s", "1:00", "2:05", "1:02:05"]
    assert output.counted(1, "study", "studies") == "1 study"
    assert output.counted(1200, "study", "studies") == "1,200 studies"
