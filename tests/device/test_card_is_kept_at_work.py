"""Between jobs the card keeps working, for a while, and never in a worker that has lost it."""

from __future__ import annotations

from typing import Any

import pytest

from gemmtune.device.child import _serve
from gemmtune.device.cuda.heater import PATIENCE, Heater


class Graph:
    """Counts its replays; fails from the given one on."""

    def __init__(self, fails_at: int = 10**9) -> None:
        self.replays = 0
        self.fails_at = fails_at

    def launch(self, stream: Any) -> None:
        self.replays += 1
        if self.replays >= self.fails_at:
            raise RuntimeError("an illegal memory access was encountered")


class Stream:
    def synchronize(self) -> None: ...


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_it_works_from_the_first_trial_until_none_has_come_for_a_while() -> None:
    graph: Any = Graph()
    heater = Heater(Stream(), Clock())
    assert not heater.beat()
    heater.light(graph)
    while heater.beat():
        pass
    assert graph.replays == PATIENCE
    assert not heater.beat()
    heater.light(graph)
    assert heater.beat()
    heater.put_out()
    assert not heater.beat()


def test_a_lost_context_ends_it() -> None:
    graph: Any = Graph(fails_at=3)
    heater = Heater(Stream(), Clock())
    heater.light(graph)
    assert [heater.beat() for _ in range(4)] == [True, True, False, False]


class Pipe:
    """Has a request ready after so many looks; then the parent is gone."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.sent: list[bytes] = []

    def poll(self, timeout: float) -> bool:
        self.after -= 1
        return self.after < 0

    def recv_bytes(self) -> bytes:
        import pickle

        if self.sent:
            raise EOFError
        return pickle.dumps(("work", ()))

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(("breath", "beats"), [(100, 5), (2, 3)])
def test_a_worker_idles_until_a_request_comes_or_there_is_nothing_to_do(breath: int, beats: int) -> None:
    class Engine:
        beats = 0

        def work(self) -> str:
            return "done"

        def idle(self) -> bool:
            self.beats += 1
            return self.beats <= breath

    pipe: Any = Pipe(after=5)
    engine: Any = Engine()
    _serve(pipe, engine)
    assert len(pipe.sent) == 1
    assert engine.beats >= beats
