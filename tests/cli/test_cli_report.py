"""``gemmtune report`` and ``gemmtune dashboard``: which study is meant, what is written where, and a real browser."""

import queue
import re
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from gemmtune.cli.main import run
from gemmtune.db import History

RECORDED = Path(__file__).parents[2] / "benchmarks" / "h200" / "main-job.history.gz"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The committed history of the H200: 20 studies, 1 and 6 of 4096x4096x4096 in bf16 and fp32."""
    path = tmp_path_factory.mktemp("report") / "history.db"
    with History(path) as history:
        history.merge(RECORDED)
    return str(path)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("asked", "written", "title"),
    [
        (["7"], "study-7.html", "gemm 1024x1024x4096 fp32 nt"),
        (["7.html"], "7.html", "gemm 1024x1024x4096 fp32 nt"),
        (["study-7.html"], "study-7.html", "gemm 1024x1024x4096 fp32 nt"),
        (["4096x4096x4096", "--dtype", "fp32"], "study-6.html", "gemm 4096x4096x4096 fp32 nt"),
        (["4096x4096x4096.html", "--dtype", "fp32"], "4096x4096x4096.html", "gemm 4096x4096x4096 fp32 nt"),
        (["night.html"], "night.html", "gemm 1000x1000x1000 fp16 nt"),
        (["night.html", "--dtype", "bf16"], "night.html", "gemm 1000x1000x1000 bf16 nt"),
        (["7", "-o", "here.html"], "here.html", "gemm 1024x1024x4096 fp32 nt"),
        (["7.html", "-o", "here.html"], "here.html", "gemm 1024x1024x4096 fp32 nt"),
    ],
)
def test_the_study_that_is_meant_is_written_where_it_was_asked(cli, db, tmp_path, asked, written, title) -> None:
    done = cli("report", *asked, "--db", db)
    assert done.code == 0, done.err
    assert [p.name for p in tmp_path.iterdir()] == [written]
    assert f"<title>{title} on NVIDIA H200</title>" in (tmp_path / written).read_text(encoding="utf-8")
    assert f"written to {written}" in done.out
    assert title in done.out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["77"], "There is no study 77"),
        (["9" * 30], "There is no study"),
        (["night"], "'night' names no study"),
        (["-1x2x3.html"], "sizes are at least 1"),
        (["4096x4096x4096"], "name one by its number, such as 1 (gemm 4096x4096x4096 bf16 nt on cuda h200"),
        (["8x8x8"], "no study of 8x8x8"),
        (["night.html", "--dtype", "fp9"], "Unknown dtype"),
        (["night.html", "--gpu", "abacus"], "Unknown GPU"),
        (["missing/7.html"], "cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_said_in_one_line(cli, db, tmp_path, asked, said) -> None:
    done = cli("report", *asked, "--db", db)
    assert done.code in (1, 2)
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert said in done.err
    assert not list(tmp_path.iterdir())


def test_an_emulated_study_is_a_report_too(cli, tuned, tmp_path) -> None:
    assert cli("report", "emulated.html", "--db", str(tuned[0])).code == 0
    text = (tmp_path / "emulated.html").read_text(encoding="utf-8")
    assert "Nothing was measured" in text
    assert "gemm 48x40x32 fp32 nt" in text


def test_a_browser_draws_every_figure(cli, db, tmp_path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser here: looked for {', '.join(BROWSERS)}")
    assert cli("report", "5.html", "--db", db).code == 0
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=30000", "--dump-dom",
            (tmp_path / "5.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    body = done.stdout[done.stdout.index("<main") :]
    drawn = {name: "data-drawn" in rest for name, rest in re.findall(r'data-figure="([^"]+)"([^>]*)>', body)}
    assert set(drawn) == {"history", "importance", "parallel-mma", "tiles-mma", "roofline", "outcomes"}
    assert all(drawn.values()), drawn
    assert "This figure could not be drawn: " not in body.partition("<script")[0]
    assert body.count('class="main-svg"') >= len(drawn)
    assert "Download plot" in body
    assert "Share chart" not in body.partition("<script")[0], "nothing offers to upload the figures"
    assert "Content Security Policy" not in done.stderr
    assert "Uncaught" not in done.stderr


def test_the_dashboard_serves_until_ctrl_c(capsys, db, monkeypatch) -> None:
    pytest.importorskip("optuna_dashboard")
    from gemmtune.search.report import dashboard

    made: queue.Queue = queue.Queue()
    kept = dashboard.server

    def watched(*arguments):
        serving = kept(*arguments)
        forever = serving.serve_forever

        def then_ctrl_c() -> None:
            forever()
            raise KeyboardInterrupt

        serving.serve_forever = then_ctrl_c
        made.put(serving)
        return serving

    monkeypatch.setattr(dashboard, "server", watched)
    seen = []

    def visit() -> None:
        serving = made.get(timeout=60)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{serving.server_port}/api/studies", timeout=20) as answer:
                seen.extend([serving.server_port, answer.read().decode()])
        finally:
            serving.shutdown()

    visitor = threading.Thread(target=visit)
    visitor.start()
    assert run(["dashboard", "7", "--port", "0", "--db", db]) == 0
    visitor.join()
    out = capsys.readouterr().out
    assert f"1 study at http://127.0.0.1:{seen[0]}/ until Ctrl-C." in out
    assert "the history is as it was" in out
    assert "gemm 1024x1024x4096 fp32 nt" in seen[1]


def test_the_dashboard_writes_a_file_of_optunas_once(cli, tuned, tmp_path) -> None:
    pytest.importorskip("optuna_dashboard")
    done = cli("dashboard", "-o", "optuna.db", "--db", str(tuned[0]))
    assert done.code == 0, done.err
    assert "optuna-dashboard sqlite:///optuna.db" in done.out
    again = cli("dashboard", "-o", "optuna.db", "--db", str(tuned[0]))
    assert again.code == 1
    assert "is there already" in again.err
