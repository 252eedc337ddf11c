"""Layers swapped in place and back; the routing context, recording, and what is said where nothing serves."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from blocks import Block  # noqa: E402

import gemmtune.torch as gt  # noqa: E402
from gemmtune.space.errors import GemmtuneError, PackError, SettingError, UnsupportedError  # noqa: E402
from gemmtune.torch import plans, registry  # noqa: E402


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return Block()


def test_swapping_keeps_keys_parameters_and_results_and_can_be_undone(
    host: Any, launches: Any, tuned: Any, model: Any
) -> None:
    a = torch.randn(8, 16)
    before, keys, parameters = model(a), list(model.state_dict()), [id(p) for p in model.parameters()]
    report = gt.optimize_(model, tuned)
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == parameters
    torch.testing.assert_close(model(a), before)
    assert [kind for kind, *_ in launches.calls] == ["kernel"]
    assert (report.swapped, len(report.layers)) == (2, 4)
    assert "pack=" in repr(model.up)
    assert gt.restore_(model) == 2
    assert type(model.up) is torch.nn.Linear
    assert "gemmtune" not in repr(model)
    launches.calls.clear()
    assert torch.equal(model(a), before)
    assert launches.calls == []
    assert gt.restore_(model) == 0


def test_the_report_says_for_each_layer_what_it_does_and_why_not(tuned: Any, model: Any) -> None:
    report = gt.optimize_(model, tuned, lambda name, layer: name != "down")
    by_name = {layer.name: layer for layer in report.layers}
    assert [row.partition(":")[0] for row in by_name["up"].rows] == ["forward m=8", "dgrad m=8", "wgrad k=8"]
    assert "1.200 x the baseline" in by_name["up"].rows[0]
    assert "filter_fn" in by_name["down"].why
    assert "NonDynamicallyQuantizableLinear" in by_name["odd"].why
    assert "float16 and bfloat16" in by_name["whole"].why
    text = str(report)
    assert text.startswith("1 of 4 linear layers use the pack")
    assert "up [32, 16] float32: uses the pack" in text
    assert str(gt.optimize_(Block(), tuned)).startswith(
        "1 of 4 linear layers use the pack; it has no row for 1 more that was swapped\n"
    )
    rowless = gt.optimize_(torch.nn.Linear(5, 5), tuned)
    assert str(rowless).startswith("0 of 1 linear layers use the pack; it has no row for 1 more that was swapped\n")
    assert "no row for it" in str(rowless)
    assert (rowless.swapped, rowless.found, rowless.served) == (1, 0, 0)


def test_the_report_promises_no_kernel_that_the_terms_of_use_leave_to_torch(tuned: Any) -> None:
    layer = torch.nn.Linear(16, 32)
    dear = gt.optimize_(layer, tuned, least_ratio=1.3)
    assert dear.served == 0
    assert str(dear).startswith("1 of 1 linear layers use the pack, whose rows leave 1 of them to torch\n")
    assert all(": torch, since kernel " in row and "less than 1.3" in row for row in dear.layers[0].rows)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda pack: gt.optimize_(torch.nn.Linear(16, 32), None), "The pack is None, but must be a loaded one"),
        (lambda pack: gt.optimize_(torch.nn.Linear(16, 32), 3), "The pack is 3, but must be a loaded one"),
        (lambda pack: gt.optimize_(3, pack), "The model is 3, but must be a torch.nn.Module"),
        (lambda pack: gt.optimize_(torch.nn.Linear(16, 32), pack, "up"), "filter_fn is 'up', but must be a function"),
        (lambda pack: gt.restore_(3), "The model is 3, but must be a torch.nn.Module"),
        (lambda pack: gt.use(pack, host_us="x"), "host_us is 'x', but must be a number of microseconds"),
        (lambda pack: gt.use(pack, host_us=[]), r"host_us is \[\], but must be a number of microseconds"),
        (lambda pack: gt.use(pack, least_ratio="x"), "least_ratio is 'x', but must be a positive number"),
        (lambda pack: gt.use(pack, least_ratio=None), "least_ratio is None, but must be a positive number"),
        (lambda pack: gt.use(None), "The pack is None"),
        (lambda pack: gt.linear(torch.ones(2, 2), torch.ones(2, 2), pack=None), "The pack is None"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(tuned: Any, call: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        call(tuned)


def test_swapped_models_train_copy_pickle_and_compile(host: Any, launches: Any, tuned: Any, model: Any) -> None:
    twin = copy.deepcopy(model)
    gt.optimize_(model, tuned)
    losses = []
    for one in (model, twin):
        optimizer = torch.optim.SGD([p for p in one.parameters() if p.dtype is torch.float32], lr=0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            loss = one(torch.randn(8, 16, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)
    assert {key for kind, key, _ in launches.calls if kind == "kernel"} == {
        "gemm 8x32x16 fp32 nt epilogue=bias", "gemm 32x16x8 fp32 tn",
    }  # fmt: skip
    a = torch.randn(8, 16)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(a), model(a))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a), model(a))


def test_a_path_is_read_once_and_a_key_is_itself(write: Any, small_pack: Any, tmp_path: Path) -> None:
    path = write(small_pack)
    key = gt.use(path)
    assert gt.use(str(path)) == key == gt.use(key)
    (path / "manifest.json").rename(path / "gone.json")
    assert gt.use(path) == key
    (path / "gone.json").rename(path / "manifest.json")
    assert gt.use(path, strict=True) != key
    with pytest.raises(PackError, match="no pack at"):
        gt.use(tmp_path / "absent.kpack")
    with pytest.raises(SettingError, match="least_ratio is -1"):
        gt.use(path, least_ratio=-1)
    with pytest.raises(GemmtuneError, match="not in use"):
        gt.served("absent")


# -------------------------------------------------------------------------------------------------------- the context


def test_the_context_routes_every_spelling_of_a_product(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    a, weight, bias = numbers(8, 16), numbers(32, 16), numbers(32)
    functional = torch.nn.functional
    spellings = [
        lambda: functional.linear(a, weight), lambda: functional.linear(a, weight=weight),
        lambda: functional.linear(a, weight, bias), lambda: functional.linear(input=a, weight=weight, bias=bias),
        lambda: torch.matmul(a, weight.T), lambda: torch.mm(a, weight.T), lambda: a @ weight.T,
        lambda: a.matmul(weight.T), lambda: a.mm(weight.T), lambda: torch.addmm(bias, a, weight.T),
        lambda: a.view(2, 4, 16) @ weight.T, lambda: torch.nn.Linear(16, 32)(a),
    ]  # fmt: skip
    for spelling in spellings:
        torch.manual_seed(0)
        wanted = spelling()
        launches.calls.clear()
        torch.manual_seed(0)
        with gt.route(tuned):
            got = spelling()
        torch.testing.assert_close(got, wanted)
        assert len(launches.calls) == 1


def test_the_context_leaves_to_torch_what_a_pack_has_no_form_for(
    host: Any, launches: Any, tuned: Any, numbers: Any
) -> None:
    a, b = numbers(8, 16), numbers(16, 32)
    out = torch.empty(8, 32)
    with gt.route(tuned):
        torch.mm(a, b, out=out)
        assert torch.equal(numbers(3, 8, 16) @ numbers(3, 16, 32) * 0, torch.zeros(3, 8, 32))
        assert (a @ numbers(16)).shape == (8,)
        assert (numbers(16) @ b).shape == (32,)
        assert torch.addmm(numbers(8, 32), a, b).shape == (8, 32)
        assert torch.addmm(numbers(32), a, b, alpha=2).shape == (8, 32)
        with pytest.raises(RuntimeError):
            torch.mm(numbers(2, 8, 16), b)
    assert torch.equal(out, a @ b)
    assert launches.calls == []


def test_gradients_flow_out_of_the_context_and_it_compiles(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    a, weight = numbers(8, 16, grad=True), numbers(32, 16, grad=True)
    with gt.route(tuned):
        out = torch.nn.functional.linear(a, weight)
    out.backward(numbers(8, 32))
    assert len(launches.calls) == 3


# --------------------------------------------------------------------------------------------------- what is not served


def test_cpu_tensors_are_torchs_with_one_warning(tuned: Any, numbers: Any) -> None:
    a, weight = numbers(8, 16), numbers(32, 16)
    with pytest.warns(gt.PackWarning, match="is on cpu: kernels run on GPUs"):
        gt.linear(numbers(9, 16), weight, pack=tuned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(gt.linear(a, weight, pack=tuned), a @ weight.T)
    assert gt.explain(a, weight, pack=tuned).startswith("torch: A tensor of shape (8, 16) is on cpu")


def test_strict_raises_instead(tuned: Any, numbers: Any) -> None:
    key = gt.use(tuned, strict=True)
    with pytest.raises(UnsupportedError, match="is on cpu"):
        gt.linear(numbers(8, 16), numbers(32, 16), pack=key)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float64])
def test_other_dtypes_are_torchs(dtype: Any, host: Any, tuned: Any, numbers: Any) -> None:
    a, weight = numbers(8, 16, dtype=dtype), numbers(32, 16, dtype=dtype)
    with pytest.warns(gt.PackWarning, match=str(dtype)):
        got = gt.linear(a, weight, pack=tuned)
    assert torch.equal(got, torch.nn.functional.linear(a, weight))
    assert torch.equal(gt.matmul(a, weight.T, pack=tuned), a @ weight.T)


def test_another_gpu_another_driver_and_no_cupy_are_said_once(
    host: Any, launches: Any, tuned: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune.pack import executor
    from gemmtune.pack.runtime import Pack
    from gemmtune.space.errors import ToolchainError
    from gemmtune.space.gpu import gpu

    a, weight = numbers(8, 16), numbers(32, 16)
    host.version = "999.1"
    with pytest.warns(gt.PackWarning, match="under driver 580, but this is 999.1"):
        gt.linear(a, weight, pack=tuned)
    assert len(launches.calls) == 1

    monkeypatch.setattr(executor, "identity", lambda index: gpu("a100"))
    elsewhere = Pack(tuned._data, "elsewhere")
    with pytest.warns(gt.PackWarning, match=r"measured on NVIDIA H200, but this GPU is NVIDIA A100.*torch multiplies"):
        assert torch.equal(gt.linear(a, weight, pack=elsewhere), a @ weight.T)
    assert "no row" in gt.explain(a, weight, pack=elsewhere)

    def absent(index: int) -> Any:
        raise ToolchainError("CuPy is not installed.")

    monkeypatch.setattr(executor, "identity", absent)
    broken = Pack(tuned._data, "broken")
    with pytest.warns(gt.PackWarning, match="CuPy is not installed"):
        assert torch.equal(gt.linear(a, weight, pack=broken), a @ weight.T)
    with pytest.raises(UnsupportedError, match="CuPy is not installed"):
        gt.linear(a, weight, pack=gt.use(broken, strict=True))


def test_a_kernel_that_cannot_be_launched_gives_way_to_torch(
    host: Any, launches: Any, tuned: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune.space.errors import LaunchError

    a, weight = numbers(8, 16), numbers(32, 16)
    state = tuned.state(0)

    def refuse(*_: Any) -> Any:
        def run(at: Any, scalars: Any) -> None:
            raise LaunchError("the driver refused.")

        return run

    monkeypatch.setattr(state, "plan", refuse)
    with pytest.warns(gt.PackWarning, match="could not be launched"):
        assert torch.equal(gt.linear(a, weight, pack=tuned), a @ weight.T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(gt.linear(a, weight, pack=tuned), a @ weight.T)


def test_a_kernel_that_promises_too_little_is_not_taken(host: Any, launches: Any, tuned: Any, numbers: Any) -> None:
    key = gt.use(tuned, least_ratio=1.3)
    gt.linear(numbers(8, 16), numbers(32, 16), pack=key)
    assert launches.calls == []
    assert "1.200 x the baseline, less than 1.3" in next(iter(gt.served(key).values()))


def test_an_unknown_key_is_torchs_with_one_warning(numbers: Any) -> None:
    a, weight = numbers(8, 16), numbers(32, 16)
    with pytest.warns(gt.PackWarning, match="No pack is in use under the key 'gone'"):
        torch.ops.gemmtune.linear(a, weight, None, "gone")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.ops.gemmtune.linear(a, weight, None, "gone"), a @ weight.T)


def test_a_misaligned_allocator_is_torchs(host: Any, launches: Any, tuned: Any, numbers: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(plans, "POINTER_BITS", 1 << 3)
    a, weight = numbers(8, 16), numbers(32, 16)
    got = [gt.linear(a, weight, pack=tuned) for _ in range(4)]
    assert all(torch.equal(d, a @ weight.T) for d in got)


def test_the_seam_for_fused_layers_refuses_what_is_not_there(tuned: Any, numbers: Any) -> None:
    with pytest.raises(UnsupportedError, match="'gelu' with 0 scales"):
        torch.ops.gemmtune.linear(numbers(8, 16), numbers(32, 16), None, gt.use(tuned), "gelu")


def test_plans_and_notes_do_not_grow_for_ever(
    host: Any, tuned: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 4)
    monkeypatch.setattr(registry, "MAX_SERVED", 4)
    for rows in range(1, 20):
        gt.linear(numbers(rows, 16), numbers(32, 16), pack=tuned)
    handle = registry.handle_of(gt.use(tuned))
    assert handle is not None
    assert len(handle.plans()) <= 4
    assert len(handle.served) == 4


def test_a_program_needs_torch_and_the_pack_alone(write: Any, small_pack: Any) -> None:
    program = """
import sys
BLOCKED = ("optuna", "sqlalchemy", "alembic", "jinja2", "typer", "rich", "cupy", "cuda")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Block())
import warnings, torch, gemmtune
warnings.simplefilter("ignore")
layer = torch.nn.Linear(16, 32)
gemmtune.torch.optimize_(layer, sys.argv[1])
print(layer(torch.ones(64, 16)).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(write(small_pack))], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "torch.Size([64, 32])", done.stderr


def test_without_torch_one_sentence_says_so() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\ntry:\n import gemmtune.torch\nexcept Exception as e: print(repr(e))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ToolchainError('PyTorch is not installed")
