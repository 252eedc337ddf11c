"""The worker process: whatever happens in the child, a typed answer comes back and the next request works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.device.base import Job, Limits, Outcome, Report
from gemmtune.device.worker import Worker, resolve_engine
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError, UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe, Tile

ENGINE = """
import os, signal, sys, threading, time
from gemmtune.device.base import Outcome, Report
from gemmtune.device.emulator.toolchain import CompilerFailure
from gemmtune.space.errors import LaunchError, ToolchainError

class Scripted:
    "Does what the job's entry name says."
    def __init__(self, fail="", renew_after=None):
        if fail == "typed":
            raise ToolchainError("There is no compiler here: install one.")
        if fail == "subtype":
            raise CompilerFailure("c++", "x.cpp:1: error")
        if fail == "bug":
            raise RuntimeError("a bug")
        if fail == "abort":
            os.abort()
        if renew_after:
            self.renew_after = renew_after
        self.spent = False
        self.extra = None
    def run(self, job):
        what = job.kernel.source.entry
        if what == "hang": threading.Event().wait()
        if what == "abort":
            print("the device is on fire", flush=True)
            os.abort()
        if what == "segv": os.kill(os.getpid(), signal.SIGSEGV)
        if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit": os._exit(3)
        if what == "raise": raise ValueError("odd")
        if what == "memory": raise MemoryError("7 GB more were needed")
        if what == "launch": raise LaunchError("The grid is too large.")
        if what == "lambda": return lambda: 0
        if what == "nonsense": return 42
        if what == "sticky":
            self.spent = True
            return Report(Outcome.LAUNCH, "an illegal address")
        if what == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if what == "grandchild":
            import subprocess
            p = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
            open(job.kernel.source.text, "w").write(str(p.pid))
            threading.Event().wait()
        return Report(Outcome.CORRECT, str(os.getpid()))
    def compare(self, jobs):
        return [Report(Outcome.CORRECT, j.kernel.source.entry) for j in jobs]
    def add(self, a, b): return a + b
    def refuse(self): raise ToolchainError("No GPU was found.")
    def fail(self): raise CompilerFailure("c++", "x.cpp:1: error")
    def close(self): pass
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "scripted_engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "scripted_engine:Scripted"


@pytest.fixture
def worker(engine: str) -> Iterator[Worker]:
    with Worker(engine) as w:
        yield w


def job(what: str, text: str = "") -> Job:
    recipe = LaunchRecipe(what, (32, 1, 1), ("1", "1", "1"), (), Tile(1, 1, "0", "0"))
    source = KernelSource(Configuration.of("fake", {}), what, text, "", recipe)
    return Job(Gemm(8, 8, 8), CompiledKernel(source, "sm_90a", b"", None, "", "", 0.0, False), seed=1)


def eventually(condition: Callable[[], bool], timeout: float = 20.0) -> bool:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.01)
    return True


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_requests_are_served_by_one_child(worker: Worker) -> None:
    reports = [worker.request(job("fine"), Limits()) for _ in range(50)]
    assert {r.outcome for r in reports} == {Outcome.CORRECT}
    assert len({r.detail for r in reports}) == 1
    assert worker.started == 1


@pytest.mark.parametrize(
    ("what", "outcome", "said"),
    [
        ("abort", Outcome.LAUNCH, "SIGABRT. Its last words: the device is on fire"),
        ("segv", Outcome.LAUNCH, "SIGSEGV"),
        ("killed", Outcome.OUT_OF_MEMORY, "memory"),
        ("exit", Outcome.INFRASTRUCTURE, "exit code 3"),
        ("raise", Outcome.INFRASTRUCTURE, "ValueError: odd"),
        ("memory", Outcome.OUT_OF_MEMORY, "7 GB"),
        ("launch", Outcome.LAUNCH, "The grid is too large."),
        ("lambda", Outcome.INFRASTRUCTURE, "cannot be sent"),
        ("nonsense", Outcome.INFRASTRUCTURE, "int"),
    ],
)
def test_every_end_is_a_typed_report_and_the_next_request_works(
    worker: Worker, what: str, outcome: Outcome, said: str
) -> None:
    report = worker.request(job(what), Limits())
    assert report.outcome is outcome
    assert said in report.detail
    assert report.killed == (what in ("abort", "segv", "killed", "exit"))
    assert worker.request(job("fine"), Limits()).outcome is Outcome.CORRECT


def test_a_hang_is_killed_and_replaced(worker: Worker) -> None:
    first = int(worker.request(job("fine"), Limits()).detail)
    report = worker.request(job("hang"), Limits(0.05, 0.05, 0.05, 0.05))
    assert report.outcome is Outcome.TIMEOUT
    assert "No answer within 0.15 s" in report.detail
    assert report.killed
    assert not alive(first)
    assert int(worker.request(job("fine"), Limits()).detail) != first


def test_what_the_child_started_dies_with_it(worker: Worker, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    worker.start()
    done: list[Report] = []
    thread = threading.Thread(target=lambda: done.append(worker.request(job("grandchild", str(note)), Limits())))
    thread.start()
    assert eventually(lambda: note.exists() and note.read_text() != "")
    pid = int(note.read_text())
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    thread.join()
    assert done[0].outcome is Outcome.OUT_OF_MEMORY
    assert eventually(lambda: not alive(pid))


def test_a_sticky_error_ends_the_child_after_its_report(worker: Worker) -> None:
    first = int(worker.request(job("fine"), Limits()).detail)
    report = worker.request(job("sticky"), Limits())
    assert (report.outcome, report.detail, report.killed) == (Outcome.LAUNCH, "an illegal address", True)
    assert worker.pid is None
    assert int(worker.request(job("fine"), Limits()).detail) != first
    assert worker.started == 2


def test_children_are_renewed_after_the_engines_own_number_of_requests(engine: str) -> None:
    with Worker(engine, {"renew_after": 3}) as w:
        pids = [w.request(job("fine"), Limits()).detail for _ in range(7)]
    assert [len(set(pids[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3


def test_compare_answers_one_report_for_each_job(worker: Worker) -> None:
    assert [r.detail for r in worker.compare([job("x"), job("y")], 30)] == ["x", "y"]


def test_ask_returns_values_and_raises_typed_errors(worker: Worker) -> None:
    assert worker.ask("add", 2, 3) == 5
    with pytest.raises(ToolchainError, match=r"No GPU was found\."):
        worker.ask("refuse")
    with pytest.raises(ToolchainError, match=r"c\+\+ failed: x\.cpp:1"):  # a subclass with arguments of its own
        worker.ask("fail")
    assert worker.started == 1


@pytest.mark.parametrize(
    ("fail", "said"),
    [("typed", "install one"), ("subtype", "x.cpp:1: error"), ("bug", "RuntimeError: a bug"), ("abort", "SIGABRT")],
)
def test_an_engine_that_does_not_come_up(engine: str, fail: str, said: str) -> None:
    with Worker(engine, {"fail": fail}) as w:
        with pytest.raises(ToolchainError, match=said):
            w.start()
        with pytest.raises(ToolchainError, match=said):  # no kernel is to blame: no trial may be spent on it
            w.request(job("fine"), Limits())


def test_a_module_that_does_not_exist() -> None:
    with Worker("no_such_module:Engine") as w, pytest.raises(ToolchainError, match="no_such_module"):
        w.start()


def test_an_unpicklable_job_is_reported(worker: Worker) -> None:
    report = worker.request(job("fine"), Limits())
    assert report.outcome is Outcome.CORRECT
    bad = job("fine")
    object.__setattr__(bad, "seed", lambda: 0)
    report = worker.request(bad, Limits())
    assert report.outcome is Outcome.INFRASTRUCTURE
    assert "cannot be sent" in report.detail


def test_the_child_ignores_ctrl_c(worker: Worker) -> None:
    assert worker.request(job("interrupt"), Limits()).outcome is Outcome.CORRECT


def test_ctrl_c_in_the_parent_never_mixes_up_answers(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.start()
    first = worker.pid
    assert worker._pipe is not None

    def interrupted(timeout: float = 0.0) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(worker._pipe), "poll", lambda self, timeout=0.0: interrupted(timeout))
    with pytest.raises(KeyboardInterrupt):
        worker.request(job("fine"), Limits())
    monkeypatch.undo()
    assert worker.pid is None
    assert first is not None
    assert not alive(first)


def test_close_is_idempotent_and_leaves_no_zombie(engine: str) -> None:
    w = Worker(engine)
    w.close()
    w.start()
    pid = w.pid
    assert pid is not None
    w.close()
    w.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_child_outlives_the_thread_that_first_asked_for_it(worker: Worker) -> None:
    thread = threading.Thread(target=worker.start)
    thread.start()
    thread.join()
    pid = worker.pid
    assert worker.request(job("fine"), Limits()).detail == str(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("what", ["fine", "hang"])
def test_the_child_dies_with_its_parent(engine: str, tmp_path: Path, what: str) -> None:
    """kill -9 of the parent, with the child idle and with the child busy."""
    script = textwrap.dedent(
        f"""
        import sys, threading
        sys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parent)!r}]
        from test_worker_process import job
        from gemmtune.device.base import Limits
        from gemmtune.device.worker import Worker
        w = Worker({engine!r})
        w.start()
        print(w.pid, flush=True)
        if {what!r} == "hang":
            w.request(job("hang"), Limits())
        threading.Event().wait()
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not alive(pid))


def test_engine_names() -> None:
    assert resolve_engine("cuda:3") == ("gemmtune.device.cuda.engine:CudaEngine", {"index": 3})
    assert resolve_engine("emulator:h200")[1] == {"gpu_name": "h200"}
    assert resolve_engine("a.b:C") == ("a.b:C", {})
    for bad in ("cuda", "cuda:x", "", "emulator:", "x:1y", "1x:y"):
        with pytest.raises(UnknownNameError):
            resolve_engine(bad)
