"""The numbers of the operators with real kernels behind them, emulated: a linear layer, its gradients, its training."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.codegen.render import render  # noqa: E402
from gemmtune.device.emulator.build import build_kernel  # noqa: E402
from gemmtune.device.emulator.launch import Buffer, KernelLibrary, launch  # noqa: E402
from gemmtune.device.emulator.operands import window  # noqa: E402
from gemmtune.pack import executor  # noqa: E402
from gemmtune.pack.format import PackData  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.pack.schema import Kernel, Point, Table, row_of  # noqa: E402
from gemmtune.space.configuration import Configuration  # noqa: E402
from gemmtune.space.expression import expression  # noqa: E402
from gemmtune.space.families import family  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402
from gemmtune.space.gpu import gpu  # noqa: E402
from gemmtune.space.recipe import LaunchRecipe  # noqa: E402
from gemmtune.space.space import Space  # noqa: E402

H200 = gpu("h200")
M, N, K = 24, 32, 64


class EmulatedKernel:
    """In the place of a loaded kernel: its source, emulated; operands are copied into guarded buffers and back."""

    sources: Mapping[str, str] = {}

    def __init__(self, cubin: bytes, recipe: LaunchRecipe) -> None:
        text = self.sources[hashlib.sha256(cubin).hexdigest()]
        self.library = KernelLibrary(build_kernel(text, recipe.entry, capability=90))
        self.recipe = recipe
        self.problem = Gemm.from_json(eval(cubin))

    def prepare(self, env: Mapping[str, int], pointers: Mapping[str, int]) -> Any:
        kernel, names = self, self.recipe.tensors

        class Prepared:
            pointer_names = names

            def launch_at(self, addresses: Any, stream: int, scratch: Any, scalars: Any) -> None:
                kernel.run({**env, "sms": 1}, dict(zip(names, addresses, strict=True)))

        return Prepared()

    def run(self, env: dict[str, Any], at: dict[str, int]) -> None:
        problem = self.problem.with_axes(m=env["m"], n=env["n"], k=env["k"])
        buffers: dict[str, Buffer] = {}
        outputs = []
        for t in problem.tensors():
            ld = env.get(f"ld{t.name}", t.shape[1])
            nbytes = ((t.shape[0] - 1) * ld + t.shape[1]) * t.dtype.bytes
            buffers[t.name] = Buffer(t.name, nbytes, at_end=False, writable=t.output)
            host = np.frombuffer((ctypes.c_char * nbytes).from_address(at[t.name]), np.uint8).view(t.dtype.np)
            there = np.lib.stride_tricks.as_strided(host, t.shape, (ld * host.itemsize, host.itemsize))
            if t.output:
                outputs.append((there, window(buffers[t.name], t, ld)))
            else:
                window(buffers[t.name], t, ld)[...] = there
        env |= {f"ptr_{name}": buffer.address for name, buffer in buffers.items()}
        for name in ("workspace", "counters"):
            buffers[name] = Buffer(name, int(expression(getattr(self.recipe, name))(env)), at_end=False)
        buffers["counters"].view(np.dtype(np.uint8))[:] = 0
        c_types = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}
        arguments = []
        for a in self.recipe.arguments:
            if a.kind == "scalar":
                value = expression(a.expr)(env) if a.expr else env[a.name]
                arguments.append(c_types[a.type](value))
            else:
                arguments.append(ctypes.c_void_p(buffers[a.name if a.kind == "pointer" else a.kind].address))
        launch(
            self.library,
            grid=self.recipe.grid_size(env),
            block=self.recipe.block,
            arguments=arguments,
            buffers=list(buffers.values()),
            dynamic_shared=self.recipe.dynamic_shared,
        )
        for there, window_ in outputs:
            there[...] = window_
        for buffer in buffers.values():
            buffer.free()


def split_k(problem: Gemm) -> Configuration:
    """A small configuration of the mma family that splits K, and so needs a workspace and counters."""
    space = Space(problem, H200, [family("mma")])
    for i in range(0, len(space), max(1, len(space) // 20000)):
        if space[i]["splits"] == 2 and space[i]["bm"] <= 32 and space[i]["bn"] <= 32:
            return space[i]
    raise AssertionError("no configuration splits K")


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> Pack:
    """Kernels for a linear layer [N, K] at M rows and its gradients."""
    problems = [
        (Gemm(M, N, K, "bf16", epilogue="bias"), Configuration.of("naive", {})),
        (Gemm(M, N, K, "bf16"), split_k(Gemm(M, N, K, "bf16"))),
        (Gemm(M, K, N, "bf16", layout="nn"), Configuration.of("naive", {})),
        (Gemm(N, K, M, "bf16", layout="tn"), Configuration.of("naive", {})),
    ]
    kernels, cubins, sources, rows = {}, {}, {}, []
    for problem, configuration in problems:
        made = render(problem, configuration)
        cubin = repr(problem.to_json()).encode()
        sha = hashlib.sha256(cubin).hexdigest()
        kernels[sha] = Kernel(sha, made.recipe, configuration, problem, H200.arch, "13.0", "0" * 64, 40, 0)
        cubins[sha], sources[sha] = cubin, made.text
        point = Point(dict(problem.axes), 1000.0, 990.0, 1010.0, 1200.0, 1.2, 1.19, 1.21)
        rows.append(row_of(problem, kernel=sha, points=(point,)))
    table = Table(H200.key, H200.name, H200.arch, "sustained", "cold", {}, tuple(rows))
    monkeypatch.setattr(EmulatedKernel, "sources", sources)
    monkeypatch.setattr(executor, "LoadedKernel", EmulatedKernel)
    return Pack(PackData((table,), kernels, cubins, sources), "emulated")


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_its_gradients_keep_the_bound_of_the_kernels(
    bias: bool, host: Any, launches: Any, pack: Pack, monkeypatch: Any
) -> None:
    monkeypatch.setattr(executor, "LoadedKernel", EmulatedKernel)  # after the stand-in of the launches
    torch.manual_seed(0)
    layer = torch.nn.Linear(K, N, bias=bias, dtype=torch.bfloat16)
    gt.optimize_(layer, pack, strict=True)
    a = torch.randn(2, M // 2, K, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(2, M // 2, N, dtype=torch.bfloat16)
    out = layer(a)
    out.backward(grad)
    assert len(gt.served(pack)) == 3
    assert all(who.startswith("kernel") for who in gt.served(pack).values())

    x, w, g = (t.detach().double().numpy().reshape(-1, t.shape[-1]) for t in (a, layer.weight, grad))
    b = layer.bias.detach().double().numpy() if bias else 0.0
    for got, left, right, added in (
        (out, x, w.T, b), (a.grad, g, w, 0.0), (layer.weight.grad, g.T, x, 0.0),
    ):  # fmt: skip
        wanted = left @ right + added
        bound = Gemm(*wanted.shape, left.shape[1], "bf16").error_bound()
        scale = np.abs(left) @ np.abs(right) + np.abs(added)
        error = np.abs(got.detach().double().numpy().reshape(wanted.shape) - wanted)
        assert (error <= bound.accumulation * scale + bound.rounding * np.abs(wanted)).all()


def test_training_with_emulated_kernels_follows_plain_training(
    host: Any, launches: Any, pack: Pack, monkeypatch: Any
) -> None:
    monkeypatch.setattr(executor, "LoadedKernel", EmulatedKernel)
    losses: dict[bool, list[float]] = {True: [], False: []}
    for tuned in losses:
        torch.manual_seed(1)
        layer = torch.nn.Linear(K, N, dtype=torch.bfloat16)
        if tuned:
            gt.optimize_(layer, pack)
        a, target = torch.randn(M, K, dtype=torch.bfloat16), torch.randn(M, N, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        for _ in range(4):
            loss = (layer(a) - target).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[tuned].append(loss.item())
    assert losses[True][-1] < losses[True][0]
    np.testing.assert_allclose(losses[True], losses[False], rtol=2e-2)
