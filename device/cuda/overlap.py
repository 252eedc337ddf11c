"""Graphs whose products overlap as programmatic dependent launches do, whoever's kernels they are.

A kernel that is launched so may begin when the one before has let go or ended its blocks, without the wait between two
launches. Timed beside it, a library's product must have the same: the edges between its products are made
programmatic after capture. A kernel that never lets go early then waits for its predecessor's blocks alone. Edges
within a product of several kernels stay whole, since these hand data on.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

from gemmtune.device import driver
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError

_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_FULL, _PROGRAMMATIC = 0, 1  # CUgraphDependencyType
_PORT_PROGRAMMATIC = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC


class Edge(ctypes.Structure):
    """``CUgraphEdgeData`` (CUDA 12.3 and later)."""

    _fields_ = (
        ("from_port", ctypes.c_uint8),
        ("to_port", ctypes.c_uint8),
        ("type", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 5),
    )


class OverlappedGraph:
    """A captured graph of ``launches`` products with its edges between products made programmatic.

    Args:
        captured: CuPy's graph; kept.
        launches: how many products it holds, each of as many nodes.

    Raises:
        LaunchError: the graph is no chain of equal products, or the driver refuses.
        ToolchainError: the driver is older than CUDA 12.3.
    """

    def __init__(self, captured: Any, launches: int) -> None:
        self._runtime = require_cupy().cuda.runtime
        self._captured = captured
        self.changed = overlap(int(captured.graph), launches)
        """How many edges were whole and are programmatic now."""
        self._exec = self._runtime.graphInstantiate(captured.graph)

    def launch(self, stream: Any) -> None:
        """Enqueue one replay."""
        self._runtime.graphLaunch(self._exec, stream.ptr)

    def upload(self, stream: Any) -> None:
        """Bring it to the device ahead of the first launch."""
        self._runtime.graphUpload(self._exec, stream.ptr)

    def __del__(self) -> None:
        if hasattr(self, "_exec"):
            with contextlib.suppress(RuntimeError):  # the context may be lost
                self._runtime.graphExecDestroy(self._exec)


def overlap(graph: int, launches: int) -> int:
    """Make the edges between a graph's products programmatic; how many were not.

    Args:
        graph: handle of a ``CUgraph``.
        launches: how many products it is a chain of.

    Raises:
        LaunchError, ToolchainError: see :class:`OverlappedGraph`.
    """
    if launches == 1:
        return 0
    follows = _edges(graph)
    nodes = len(follows) + 1
    each, rest = divmod(nodes, launches)
    order = _chain(follows)
    if rest or len(order) != nodes:
        raise LaunchError(
            f"A graph of {launches} launches cannot be overlapped: its {nodes} nodes are no chain of equal parts."
        )
    pairs = [(order[i - 1], order[i]) for i in range(each, nodes, each)]
    changed = [p for p in pairs if follows[p[0]][1] == _FULL and all(_node_type(node) == _KERNEL for node in p)]
    if changed:
        count = len(changed)
        before = (ctypes.c_void_p * count)(*(first for first, _ in changed))
        after = (ctypes.c_void_p * count)(*(second for _, second in changed))
        size = ctypes.c_size_t(count)
        _call("cuGraphRemoveDependencies_v2", ctypes.c_void_p(graph), before, after, (Edge * count)(), size)
        edges = (Edge * count)(*[Edge(_PORT_PROGRAMMATIC, 0, _PROGRAMMATIC)] * count)
        _call("cuGraphAddDependencies_v2", ctypes.c_void_p(graph), before, after, edges, size)
    return len(changed)


def _edges(graph: int) -> dict[int, tuple[int, int]]:
    """By node: the one after it, and the type of the edge between."""
    count = ctypes.c_size_t()
    _call("cuGraphGetEdges_v2", ctypes.c_void_p(graph), None, None, None, ctypes.byref(count))
    if not count.value:
        return {}
    before, after = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    edges = (Edge * count.value)()
    _call("cuGraphGetEdges_v2", ctypes.c_void_p(graph), before, after, edges, ctypes.byref(count))
    return {int(b or 0): (int(a or 0), edge.type) for b, a, edge in zip(before, after, edges, strict=True)}


def _chain(follows: dict[int, tuple[int, int]]) -> Sequence[int]:
    """The nodes from first to last; shorter than the graph where that is no chain."""
    behind = {after for after, _ in follows.values()}
    first = [node for node in follows if node not in behind]
    order = first[:1]
    while order and order[-1] in follows and len(order) <= len(follows):
        order.append(follows[order[-1]][0])
    return order


def _node_type(node: int) -> int:
    kind = ctypes.c_int()
    _call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
    return kind.value


def _call(name: str, *arguments: Any) -> None:
    status = driver.function(name)(*arguments)
    if status:
        raise LaunchError(f"The driver refused to overlap a graph ({name}): {driver.status_name(status)}.")
