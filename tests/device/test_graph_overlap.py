"""Edges between the products of a captured graph are made programmatic, those within a product are left whole."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device import driver
from gemmtune.device.cuda.overlap import Edge, overlap
from gemmtune.space.errors import LaunchError

KERNEL, MEMSET = 0, 2


class Driver:
    """One graph: nodes with their types, edges with their data."""

    def __init__(self, types: list[int], edges: list[tuple[int, int]] | None = None) -> None:
        self.types = {1000 + i: kind for i, kind in enumerate(types)}
        names = list(self.types)
        pairs = [(i, i + 1) for i in range(len(types) - 1)] if edges is None else edges
        self.edges = {(names[a], names[b]): (0, 0) for a, b in pairs}
        self.refuse = ""

    def function(self, name: str) -> Any:
        call = getattr(self, name)
        return lambda *arguments: 1 if name == self.refuse else call(*arguments)

    def cuGraphGetEdges_v2(self, graph: Any, before: Any, after: Any, data: Any, count: Any) -> int:
        assert graph.value == 77
        count._obj.value = len(self.edges)
        if before is not None:
            for i, ((a, b), (port, kind)) in enumerate(reversed(self.edges.items())):  # in no order
                before[i], after[i], data[i] = a, b, Edge(port, 0, kind)
        return 0

    def cuGraphNodeGetType(self, node: Any, out: Any) -> int:
        out._obj.value = self.types[node.value]
        return 0

    def cuGraphRemoveDependencies_v2(self, graph: Any, before: Any, after: Any, data: Any, count: Any) -> int:
        for i in range(count.value):
            found = self.edges.pop((before[i], after[i]))
            assert found == (data[i].from_port, data[i].type)
        return 0

    def cuGraphAddDependencies_v2(self, graph: Any, before: Any, after: Any, data: Any, count: Any) -> int:
        for i in range(count.value):
            self.edges[before[i], after[i]] = (data[i].from_port, data[i].type)
        return 0

    def programmatic(self) -> list[int]:
        """Positions of the nodes behind a programmatic edge."""
        return sorted(b - 1000 for (_, b), data in self.edges.items() if data == (1, 1))


def use(monkeypatch: pytest.MonkeyPatch, fake: Driver) -> Driver:
    monkeypatch.setattr(driver, "function", fake.function)
    monkeypatch.setattr(driver, "status_name", lambda status: "CUDA_ERROR_INVALID_VALUE")
    return fake


@given(launches=st.integers(1, 12), each=st.integers(1, 4))
def test_only_the_edges_between_products_change(launches: int, each: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake = use(patch, Driver([KERNEL] * (launches * each)))
        assert overlap(77, launches) == launches - 1
        assert fake.programmatic() == [each * i for i in range(1, launches)]
        assert len(fake.edges) == launches * each - 1
        assert overlap(77, launches) == 0  # a graph of overlapping launches is left as it is


def test_edges_beside_anything_but_kernels_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = use(monkeypatch, Driver([MEMSET, KERNEL, MEMSET, KERNEL]))
    assert overlap(77, 2) == 0
    assert fake.programmatic() == []


@pytest.mark.parametrize(
    ("nodes", "edges", "launches"),
    [(5, None, 2), (4, [(0, 1), (0, 2), (2, 3)], 4), (4, [(0, 2), (1, 2), (2, 3)], 4), (4, [(0, 1), (2, 3)], 4)],
)
def test_what_is_no_chain_of_equal_products_is_refused(
    monkeypatch: pytest.MonkeyPatch, nodes: int, edges: Any, launches: int
) -> None:
    fake = use(monkeypatch, Driver([KERNEL] * nodes, edges))
    with pytest.raises(LaunchError, match=f"{launches} launches cannot be overlapped"):
        overlap(77, launches)
    assert fake.programmatic() == []


def test_a_driver_that_refuses_is_a_launch_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = use(monkeypatch, Driver([KERNEL] * 3))
    fake.refuse = "cuGraphAddDependencies_v2"
    with pytest.raises(LaunchError, match=r"cuGraphAddDependencies_v2.*INVALID_VALUE"):
        overlap(77, 3)


def test_edge_data_is_as_large_as_the_drivers() -> None:
    assert ctypes.sizeof(Edge) == 8
