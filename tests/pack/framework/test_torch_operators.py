"""The operators on tensors: values, gradients, layouts, tracing; kernels stand in as launches on host memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402
from gemmtune.torch.operators import LINEAR, MATMUL  # noqa: E402
from gemmtune.torch.plans import fold  # noqa: E402


def test_a_tuned_shape_runs_its_kernel_and_another_runs_torch(
    host: Any, launches: Any, tuned: Any, numbers: Any
) -> None:
    weight = numbers(32, 16)
    for rows, who in ((8, ["kernel"]), (9, [])):
        launches.calls.clear()
        a = numbers(rows, 16)
        assert torch.equal(gt.linear(a, weight, pack=tuned), a @ weight.T)
        assert [kind for kind, *_ in launches.calls] == who
    assert [who.partition(" ")[0] for who in gt.served(tuned).values()] == ["kernel", "torch:"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_forward_and_both_gradients_are_looked_up_as_their_own_problems(
    dtype: Any, bias: bool, host: Any, launches: Any, tuned: Any, numbers: Any
) -> None:
    a, weight = numbers(2, 4, 16, dtype=dtype, grad=True), numbers(32, 16, dtype=dtype, grad=True)
    added = numbers(32, dtype=dtype, grad=True) if bias else None
    grad = numbers(2, 4, 32, dtype=dtype)
    out = gt.linear(a, weight, added, pack=tuned)
    out.backward(grad)
    name = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    assert [(kind, key) for kind, key, _ in launches.calls] == [
        ("kernel", f"gemm 8x32x16 {name} nt" + (" epilogue=bias" if bias else "")),
        ("kernel", f"gemm 8x16x32 {name} nn"),
        ("kernel", f"gemm 32x16x8 {name} tn"),
    ]
    wide = [t.detach().double().requires_grad_() for t in (a, weight, *([added] if bias else []))]
    wanted = torch.nn.functional.linear(*wide)
    wanted.backward(grad.double())
    assert torch.equal(out.double(), wanted)
    assert torch.equal(a.grad.double(), wide[0].grad)
    assert torch.equal(weight.grad.double(), wide[1].grad)
    if bias:
        assert torch.equal(added.grad.double(), wide[2].grad)


@pytest.mark.parametrize("need", ["a", "b"])
def test_only_the_wanted_gradient_is_computed(need: str, host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    a, weight = numbers(8, 16, grad=need == "a"), numbers(32, 16, grad=need == "b")
    gt.linear(a, weight, pack=tuned).backward(numbers(8, 32))
    assert len(launches.calls) == 2
    assert (a.grad is None, weight.grad is None) == (need == "b", need == "a")


@pytest.mark.parametrize("rows", [8, 9])
@pytest.mark.parametrize("problem", ["8x32x16 nt", "8x16x32 nn", "32x16x8 tn", None])
def test_where_neither_a_product_nor_a_gradient_is_served_torch_records_it(
    problem: str | None, rows: int, host: Any, launches: Any, maker: Any, numbers: Any
) -> None:
    maker.add(Gemm(64, 64, 64, "fp32"), 1.2, tag="other")
    if problem is not None:
        shape, layout = problem.split()
        maker.add(Gemm(*map(int, shape.split("x")), "fp32", layout=layout), 1.2)
    pack = Pack(maker.data(), "some")
    a, weight = numbers(rows, 16, grad=True), numbers(32, 16, grad=True)
    for _ in range(2):  # what is found out once holds
        a.grad = weight.grad = None
        out = gt.linear(a, weight, pack=pack)
        served = problem is not None and rows == 8
        assert out.grad_fn.name().startswith("Product") == served
        grad = numbers(rows, 32)
        out.backward(grad)
        assert torch.equal(a.grad, grad @ weight.detach())
        assert torch.equal(weight.grad, grad.T @ a.detach())
    assert len(launches.calls) == (2 if served else 0)
    keys = {f"gemm {rows}x32x16 fp32 nt", f"gemm {rows}x16x32 fp32 nn", f"gemm 32x16x{rows} fp32 tn"}
    assert set(gt.served(pack)) == keys
    assert sum(who.startswith("kernel") for who in gt.served(pack).values()) == served


def test_only_gradients_that_are_wanted_count(host: Any, launches: Any, maker: Any, numbers: Any) -> None:
    maker.add(Gemm(32, 16, 8, "fp32", layout="tn"), 1.2)
    pack = Pack(maker.data(), "wgrad")
    for wanted in (False, True):
        out = gt.linear(numbers(8, 16, grad=True), numbers(32, 16, grad=wanted), pack=pack)
        assert out.grad_fn.name().startswith("Product") == wanted


def test_gradients_pass_gradcheck_twice(host: Any, tuned: Any) -> None:
    """In float64, which torch serves: the formulas are what is checked."""
    tensors = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 4), (5, 4), (5,))]
    with pytest.warns(gt.PackWarning, match="float64"):
        assert torch.autograd.gradcheck(lambda a, w, b: gt.linear(a, w, b, pack=tuned), tensors)
    assert torch.autograd.gradgradcheck(lambda a, w, b: gt.linear(a, w, b, pack=tuned), tensors)
    right = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: gt.matmul(a, b, pack=tuned), (tensors[0], right))
    assert torch.autograd.gradgradcheck(lambda a, b: gt.matmul(a, b, pack=tuned), (tensors[0], right))


def test_the_operator_itself_records_gradients(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    a, weight = numbers(8, 16, grad=True), numbers(32, 16, grad=True)
    torch.ops.gemmtune.linear(a, weight, None, gt.use(tuned)).sum().backward()
    assert torch.equal(a.grad, weight.sum(0).expand(8, 16))
    assert torch.equal(weight.grad, a.sum(0).expand(32, 16))


def test_views_are_read_where_they_lie_or_copied(host: Any, launches: Any, maker: Any, numbers: Any) -> None:
    from gemmtune.pack.runtime import Pack
    from gemmtune.space.gemm import Gemm

    for layout in ("nn", "nt", "tn", "tt"):
        maker.add(Gemm(8, 32, 16, "fp32", layout=layout), tag=layout)
    pack = Pack(maker.data(), "layouts")
    for columns_a in (False, True):
        for columns_b in (False, True):
            a = numbers(16, 8).T if columns_a else numbers(8, 16)
            b = numbers(32, 16).T if columns_b else numbers(16, 32)
            launches.calls.clear()
            assert torch.equal(gt.matmul(a, b, pack=pack), a @ b)
            letters = ("t" if columns_a else "n") + ("t" if columns_b else "n")
            assert [key for _, key, _ in launches.calls] == [f"gemm 8x32x16 fp32 {letters}"]
    strange = numbers(8, 32)[:, ::2]
    launches.calls.clear()
    assert torch.equal(gt.matmul(strange, b, pack=pack), strange @ b)
    assert len(launches.calls) == 1
    crossed = numbers(2, 16, 4).transpose(1, 2)
    assert torch.equal(gt.matmul(crossed, b, pack=pack), crossed @ b)


@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16), (8, 0), (16,)])
def test_empty_tensors_and_vectors_are_torchs(shape: Any, host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    a, weight = numbers(*shape, grad=True), numbers(32, shape[-1], grad=True)
    out = gt.linear(a, weight, pack=tuned)
    assert out.shape == (*shape[:-1], 32)
    out.sum().backward()
    assert a.grad.shape == a.shape
    assert weight.grad.shape == weight.shape
    assert all(kind != "baseline" for kind, *_ in launches.calls)


def test_shapes_that_do_not_fit_fail_in_torchs_own_words(host: Any, tuned: Any, numbers: Any) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        gt.linear(numbers(8, 15), numbers(32, 16), pack=tuned)
    with pytest.raises(RuntimeError, match="same dtype"):
        gt.linear(numbers(8, 16), numbers(32, 16, dtype=torch.float16), pack=tuned)


def test_plans_are_made_once_a_kind_and_stream(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    weight = numbers(32, 16)
    for _ in range(3):
        gt.linear(numbers(8, 16), weight, pack=tuned)
    assert launches.prepared == 1
    host.stream_now = 11
    gt.linear(numbers(8, 16), weight, pack=tuned)
    assert launches.prepared == 2
    assert [stream for *_, stream in launches.calls] == [7, 7, 7, 11]
    host.current_now = 3
    gt.linear(numbers(8, 16), weight, pack=tuned)
    assert host.entered == [0]


def test_autocast_casts_as_torch_does(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    a, weight, bias = numbers(8, 16, grad=True), numbers(32, 16, grad=True), numbers(32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = gt.linear(a, weight, bias, pack=tuned)
    assert out.dtype is torch.bfloat16
    assert launches.calls[0][1] == "gemm 8x32x16 bf16 nt epilogue=bias"
    out.sum().backward()
    assert a.grad.dtype is torch.float32
    assert torch.equal(a.grad, weight.sum(0).expand(8, 16))


def test_tf32_serves_fp32_tensors_only_where_torch_may_use_it(
    host: Any, launches: Any, maker: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune.pack.runtime import Pack
    from gemmtune.space.gemm import Gemm

    maker.add(Gemm(8, 32, 16, "tf32"))
    pack = Pack(maker.data(), "tf32")
    a, weight = numbers(8, 16), numbers(32, 16)
    gt.linear(a, weight, pack=pack)
    assert launches.calls == []
    monkeypatch.setattr("gemmtune.torch.plans.tf32_allowed", lambda: True)
    gt.linear(a, weight, pack=pack)
    assert [kind for kind, *_ in launches.calls] == ["kernel"]


# ------------------------------------------------------------------------------------------------------------- tracing


@pytest.mark.parametrize("operator", [LINEAR, MATMUL])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_opcheck(operator: Any, bias: bool, rank: int, host: Any, tuned: Any) -> None:
    shape = (32, 16) if operator is LINEAR else (16, 32)
    a, b = torch.randn(*((8,), (2, 4))[rank - 2], 16, requires_grad=True), torch.randn(shape, requires_grad=True)
    added = torch.randn(32, requires_grad=True) if bias else None
    found = torch.library.opcheck(operator, (a, b, added, gt.use(tuned)))
    assert set(found.values()) == {"SUCCESS"}
    assert len(found) == 4


def test_compile_in_one_graph_forward_and_backward(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    def step(a: Any, weight: Any, bias: Any) -> Any:
        return torch.relu(gt.linear(a, weight, bias, pack=key)).sum()

    key = gt.use(tuned)
    tensors = [numbers(8, 16, grad=True), numbers(32, 16, grad=True), numbers(32, grad=True)]
    copies = [t.detach().clone().requires_grad_() for t in tensors]
    torch.compile(step, fullgraph=True, backend="aot_eager")(*tensors).backward()
    assert len([1 for kind, *_ in launches.calls if kind == "kernel"]) == 3
    torch.relu(torch.nn.functional.linear(*copies)).sum().backward()
    for ours, theirs in zip(tensors, copies, strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_an_exported_program_names_the_pack_by_what_it_serves(
    host: Any, tuned: Any, numbers: Any, tmp_path: Any
) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Any, weight: Any) -> Any:
            return gt.linear(a, weight, pack=key)

    key = gt.use(tuned)
    rows = torch.export.Dim("rows", min=2, max=64)
    tensors = (numbers(8, 16), numbers(32, 16))
    program = torch.export.export(Model(), tensors, dynamic_shapes={"a": {0: rows}, "weight": None})
    torch.export.save(program, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    (node,) = [n for n in program.graph.nodes if n.op == "call_function"]
    assert node.target is LINEAR
    assert key in node.args
    for count in (8, 3):
        a = numbers(count, 16)
        assert torch.equal(again(a, tensors[1]), a @ tensors[1].T)


@pytest.mark.filterwarnings("ignore::gemmtune.torch.PackWarning")
def test_fake_tensors_have_shapes_and_no_memory(tuned: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        out = gt.linear(torch.empty(2, 4, 16), torch.empty(32, 16), pack=tuned)
        assert out.shape == (2, 4, 32)
        assert out.stride() == (128, 32, 1)
    assert gt.linear(torch.empty(8, 16, device="meta"), torch.empty(32, 16, device="meta"), pack=tuned).shape == (8, 32)


def test_transforms_and_foreign_tensors_go_to_torch(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    weight = numbers(32, 16)
    batch = numbers(3, 8, 16)
    mapped = torch.vmap(lambda a: gt.linear(a, weight, pack=tuned))(batch)
    assert torch.equal(mapped, batch @ weight.T)
    grad = torch.func.grad(lambda a: gt.linear(a, weight, pack=tuned).sum())(batch)
    assert torch.equal(grad, weight.sum(0).expand(3, 8, 16))
    assert launches.calls == []

    class Marked(torch.Tensor):
        seen = 0

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert "gemmtune" not in str(func)
            cls.seen += 1
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))

    gt.linear(torch.Tensor._make_subclass(Marked, numbers(8, 16)), weight, pack=tuned)
    assert Marked.seen


@pytest.mark.parametrize(
    ("shape", "strides", "wanted"),
    [
        ((2, 4, 16), (64, 16, 1), ((8, 16), (16, 1))),
        ((2, 4, 16), (80, 20, 1), ((8, 16), (20, 1))),
        ((2, 4, 16), (100, 20, 1), None),
        ((2, 1, 16), (64, 999, 1), ((2, 16), (64, 1))),
        ((1, 1, 16), (5, 7, 1), ((1, 16), (16, 1))),
        ((2, 4, 16), (0, 16, 1), None),
        ((2, 4, 16), (64, 1, 4), None),
        ((4, 16), (1, 4), ((4, 16), (1, 4))),
        ((0, 4, 16), (64, 16, 1), ((0, 16), (16, 1))),
        ((16,), (1,), ((1, 16), (16, 1))),
    ],
)
def test_leading_dimensions_fold_where_they_lie_evenly(shape: Any, strides: Any, wanted: Any) -> None:
    assert fold(shape, strides) == wanted


def test_planning_is_allowed_while_a_graph_is_captured(
    host: Any, launches: Any, tuned: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import contextlib

    from gemmtune.pack import executor

    inside: list[int] = []

    @contextlib.contextmanager
    def relaxed() -> Any:
        before = launches.prepared
        yield
        inside.append(launches.prepared - before)

    monkeypatch.setattr(executor, "relaxed_capture", relaxed)
    gt.linear(numbers(8, 16), numbers(32, 16), pack=tuned)
    assert inside == [1]
