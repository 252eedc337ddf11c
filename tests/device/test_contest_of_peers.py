"""A comparison's peers: the quickest way counts, what fails is absent with a reason, every result is taken anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.device.base import Job, Measurement, Outcome, Report
from gemmtune.device.cuda import contest
from gemmtune.device.cuda.contest import Contest
from gemmtune.device.cuda.timing import Series
from gemmtune.device.peers import Peer, Way
from gemmtune.space.errors import LaunchError, ToolchainError
from gemmtune.space.gemm import Gemm

PROBLEM = Gemm(64, 48, 32)
KERNEL: CompiledKernel = None  # type: ignore[assignment]


class Graph:
    """Stands in for a replay: what it launches writes its name where D is."""

    def __init__(self, name: str, calls: Any, launches: int, stream: Any, *, overlap: bool = False) -> None:
        self.name, self.calls, self.launches, self.overlap = name, calls, launches, overlap

    def launch(self, stream: Any) -> None:
        for call in self.calls:
            call(stream.ptr)


class Machine:
    """Operands that remember who wrote D last, and a watch that knows how long each takes."""

    def __init__(self) -> None:
        self.capped = False
        self.written = "nobody"
        self.poisoned = 0
        self.rounds: list[int] = []
        self.at_own_clock: dict[float, float] = {}
        self.wrong: set[str] = set()
        self.prover = SimpleNamespace(recheck=lambda: "wrong" if self.written in self.wrong else "")
        self.stream = SimpleNamespace(ptr=9)
        self.problem = PROBLEM
        self.operands = SimpleNamespace(
            pointers={"a": 1, "b": 2, "d": 3}, scalars={}, poison_output=self._poison,
            output=SimpleNamespace(shape=(64, 48)),
        )  # fmt: skip

    def _poison(self) -> None:
        self.poisoned += 1
        self.written = "poison"

    def pointers(self, cache: str) -> list[dict[str, int]]:
        return [self.operands.pointers, {"a": 4, "b": 5, "d": 6}]

    def baseline(self, cache: str, watch: Any, *, overlap: bool = False) -> Graph:
        return Graph("cublas", [self.writer("cublas")], 1, self.stream, overlap=overlap)

    def writer(self, name: str) -> Any:
        def write(stream: int) -> None:
            self.written = name

        return write

    def way(self, name: str, us: float, *, apart: bool = False) -> Way:
        def launch(pointers: Any, stream: int) -> None:
            if us < 0:
                raise LaunchError(f"{name} is refused.")
            if not apart:
                self.written = name

        def deliver(pointers: Any, stream: int) -> None:
            self.written = f"{name} delivered"

        launch.us = us  # type: ignore[attr-defined]
        return Way(launch, deliver if apart else launch)

    # the watch

    def once(self, action: Any) -> float:
        action()
        return 30.0

    def round(self, series: list[Series]) -> None:
        self.rounds.append(len(series))
        for one in series:
            one.samples += [one.replay.calls[0].func.us] * 2  # type: ignore[attr-defined]

    def alone(self, one: Series, us: float, lead: float, span: float, samples: int) -> list[float]:
        own: float = self.at_own_clock.get(one.replay.calls[0].func.us, us)  # type: ignore[attr-defined]
        return [own] * samples


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(contest, "Replay", Graph)
    monkeypatch.setattr(contest, "inputs_at", lambda operands, rows, columns: {"a": rows})
    monkeypatch.setattr(contest, "outputs_at", lambda operands, rows, columns: made.written)
    return made


def enter(machine: Machine, monkeypatch: pytest.MonkeyPatch, peers: dict[str, Any], **changes: Any) -> Contest:
    def make(name: str, problem: Any, pointers: Any, scalars: Any) -> Peer:
        if isinstance(peers[name], Exception):
            raise peers[name]
        return Peer(name, peers[name])

    monkeypatch.setattr(contest, "make_peer", make)
    job = Job(PROBLEM, KERNEL, 3, peers=tuple(peers), excerpt=16, **changes)
    bench: Any = machine
    return Contest(bench, job, machine.stream, bench)


def test_the_quickest_of_many_ways_is_timed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [9.0, 3.0, -1.0, 5.0, 4.0, 6.0, 8.0]
    ways = [machine.way(f"way {index}", us) for index, us in enumerate(times)]
    found = enter(machine, monkeypatch, {"cublaslt16": ways})
    (series,) = found.series.values()
    assert series.replay.calls[0].func is ways[1].launch  # type: ignore[attr-defined]
    assert series.samples == []
    assert found.us == {series: 3.0}
    assert machine.rounds == [6] * contest.FIRST_ROUNDS + [contest.KEPT] * contest.LAST_ROUNDS
    assert found.absent == {}


def test_the_quickest_way_that_is_right_is_timed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [machine.way(f"way {index}", us) for index, us in enumerate([9.0, 3.0, 5.0, 4.0])]
    machine.wrong = {"way 1", "way 3"}
    found = enter(machine, monkeypatch, {"cublaslt16": ways})
    assert list(found.us.values()) == [5.0]
    assert machine.rounds == [4] * contest.FIRST_ROUNDS + [2] * contest.LAST_ROUNDS


def test_where_no_way_is_right_the_quickest_is_timed_for_others_to_judge(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [machine.way(f"way {index}", us) for index, us in enumerate([9.0, 3.0, 5.0])]
    machine.wrong = {"way 0", "way 1", "way 2"}
    assert list(enter(machine, monkeypatch, {"cublaslt16": ways}).us.values()) == [3.0]


def test_a_single_way_needs_no_rounds(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = enter(machine, monkeypatch, {"deepgemm": [machine.way("deep", 7.0)]})
    assert machine.rounds == []
    assert list(found.us.values()) == [10.0]  # three launches took 30 microseconds


def test_whatever_happens_to_a_peer_it_is_absent_and_the_others_go_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = {
        "triton": ToolchainError("The peer triton needs torch."), "odd": ZeroDivisionError("one over none"),
        "refused": [machine.way("a", -1.0)], "empty": [], "deepgemm": [machine.way("deep", 7.0)],
    }  # fmt: skip
    found = enter(machine, monkeypatch, peers)
    assert list(found.series) == ["deepgemm"]
    assert found.absent["triton"] == "The peer triton needs torch."
    assert found.absent["odd"] == "The peer odd failed: ZeroDivisionError: one over none"
    assert found.absent["refused"] == "a is refused."
    assert "knows no way to compute gemm 64x48x32" in found.absent["empty"]


@pytest.mark.parametrize("overlap", [False, True])
def test_every_result_is_taken_from_a_poisoned_output(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    peers = {"deepgemm": [machine.way("deep", 7.0)], "triton": [machine.way("own memory", 5.0, apart=True)]}
    found = enter(machine, monkeypatch, peers, overlap=overlap)
    assert all(one.replay.overlap is overlap for one in found.series.values())  # type: ignore[attr-defined]
    for one in found.series.values():
        one.samples += [2.0, 4.0, 3.0]
    kernel: Any = Graph("kernel 0", [machine.writer("ours")], 1, machine.stream)
    report = found.told(Report(Outcome.CORRECT, measurement=Measurement(1, 1, 1)), Series(kernel))
    assert report.peers == {"deepgemm": 3.0, "triton": 3.0}
    taken = report.excerpt
    assert taken is not None
    assert taken.outputs == {
        "kernel": "ours", "cublas": "cublas", "deepgemm": "deep", "triton": "own memory delivered",
    }  # fmt: skip
    assert machine.poisoned == 4
    for places, size in ((taken.rows, 64), (taken.columns, 48)):
        assert len(places) == 16
        assert {0, size - 1} <= set(places.tolist())
        assert (np.diff(places) > 0).all()


def test_a_job_that_wants_neither_gets_its_report_as_it_was(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    bench: Any = machine
    kernel: Any = Graph("kernel 0", [machine.writer("ours")], 1, machine.stream)
    report = Report(Outcome.CORRECT, measurement=Measurement(1, 1, 1))
    assert Contest(bench, Job(PROBLEM, KERNEL, 3), machine.stream, bench).told(report, Series(kernel)) == report
    assert machine.poisoned == 0


def test_at_the_power_cap_the_quickest_way_is_that_at_its_own_clock(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.capped, machine.at_own_clock = True, {3.0: 3.6}
    ways = [machine.way(f"way {index}", us) for index, us in enumerate([9.0, 3.0, 3.5, 4.0, 8.0])]
    found = enter(machine, monkeypatch, {"cublaslt16": ways})
    (series,) = found.series.values()
    assert series.replay.calls[0].func is ways[2].launch  # type: ignore[attr-defined]
    assert machine.rounds == [5] * contest.FIRST_ROUNDS
