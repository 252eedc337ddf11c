"""Two transformers on a pack beside plain torch: ``python benchmarks/model.py PACK OUT.json`` on a GPU.

With ``--record`` OUT becomes a shape file of what the models multiply, for ``gemmtune tune --shapes``; that needs no
GPU, and PACK is not read (write ``-``). ``benchmarks/model-shapes.toml`` is such a file. The parts (``speed`` takes
kernels that are worth the call, the others every one that wins):

* ``values``: logits and gradients in bf16, plain, on the pack, and both compiled, each against the same model in fp32.
  Stated bound: the relative error (Frobenius norm) on the pack is at most 1.25 x that of plain torch (compiled: of
  plain torch compiled), and 1e-3 where that is less. A gradient that plain bf16 does not get right either (an error of
  over 0.5: key biases, whose true gradient is zero) is listed and not judged.
* ``speed``: tokens/s of prefill (one sequence) and decoding (batch 1, 16, 64; one CUDA graph a token), and the time of
  a training step; plain, on the pack, and both compiled (block by block, as models of equal blocks are). The variants
  take turns, more of them while the pack's ratios are not known (``turns.py``); medians over the turns.
* ``training``: 300 steps on the bytes of Python's standard library, three seeds, plain and on the pack.

A run joins what it measures to what OUT has. Several GPUs share the work, each with a file of its own:

    CUDA_VISIBLE_DEVICES=0 python benchmarks/model.py PACK OUT.json --models llama &
    CUDA_VISIBLE_DEVICES=1 python benchmarks/model.py PACK gpt2.json --models gpt2 & wait
    python benchmarks/model.py - OUT.json --join gpt2.json

Everything is in the ``summary`` of the result file. ``--tiny`` tries the script at small sizes without a GPU.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from small_transformers import MODELS, Transformer, batches, cross_entropy, library_bytes, loss_of
from turns import Turns, ratio

import gemmtune.torch as gt
from gemmtune.device import open_device
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import ResultFile, read_result_file, save
from gemmtune.space.gpu import gpu

PROTOCOL = (
    "bf16 models with random weights. Speed: variants in turn, {least} turns of at least {span:g} s each or as many up "
    "to {most} in {seconds:g} s as bring the 95 % intervals of the pack's ratios to {known:.0%}, medians; a ratio is "
    "the median over turns of plain time / time (above 1 is faster), with that interval; Python's collector rests; "
    "prefill {prefill} tokens, decoding one token a sequence after {cached} cached ones, replayed as a CUDA graph; a "
    "training step is forward, backward and AdamW on {batch} x {length} bytes. Training: steps of that size, AdamW's "
    "rate warmed up to {rate:g} over {warmup} steps; loss curves are means of ten steps, a fall is from the first "
    "step's loss to the last ten's, and curves overlay where no two points of plain and pack are further apart than "
    "curves of different seeds are."
)
BOUND, LEAST, NOISE = 1.25, 1e-3, 0.5
RATE, WARMUP = 3e-4, 30


def main() -> None:
    """Measure the parts asked for and join them to what the file has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("output", help="result file; a shape file with --record")
    parser.add_argument("--parts", default="values,speed,training")
    parser.add_argument("--models", default="llama,gpt2")
    parser.add_argument("--record", action="store_true", help="write the shapes; PACK is not read")
    parser.add_argument("--join", metavar="FILE", help="add what FILE has; nothing is measured, and PACK is not read")
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.join:
        save_joined(options.output, read_result_file(options.join))
        return
    names = ["tiny", "tiny-gpt2"] if options.tiny else options.models.split(",")
    bench = Bench(options)
    if options.record:
        bench.record(names, options.output)
        return
    parts = options.parts.split(",")
    if not options.eager and set(parts) & {"values", "speed"}:
        bench.try_compiler()
    for name in names:
        torch.compiler.reset()  # what was compiled for another model would be looked through at every call
        for part in parts:
            found = {name: {part: getattr(bench, part)(name)}}
            bench.write(options.output, found)  # what is measured is kept, whatever comes


class Bench:
    """One pack, one device; each part returns plain data."""

    def __init__(self, options: argparse.Namespace) -> None:
        tiny = options.tiny
        self.pack, self.eager = options.pack, options.eager
        self.steps, self.seeds = options.steps, options.seeds
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.turns = Turns(self._wait, 2, 2, 0.0) if tiny else Turns(self._wait)
        self.prefill, self.batch, self.length = (64, 2, 65) if tiny else (4096, 4, 1025)
        self.decode, self.room = ((1, 2), 64) if tiny else ((1, 16, 64), 512)
        self.how: dict[str, Any] = {"fullgraph": True, "dynamic": False, "backend": "aot_eager" if tiny else "inductor"}
        # Every case is a graph of its own; past the limit torch would run eagerly without a word.
        torch._dynamo.config.recompile_limit = 64

    def model(self, name: str, seed: int = 0) -> Any:
        """A model with the weights of ``seed``."""
        torch.manual_seed(seed)
        with self.device:
            return Transformer(MODELS[name]).to(torch.bfloat16)

    def pair(self, name: str, seed: int = 0, host_us: float | None = 0.0) -> dict[str, Any]:
        """The same model twice: plain, and on the pack, with every kernel that wins or those worth ``host_us``."""
        plain = self.model(name, seed)
        tuned = copy.deepcopy(plain)
        self.key = gt.use(self.pack, host_us=host_us)
        gt.optimize_(tuned, self.key)
        return {"plain": plain, "pack": tuned}

    def variants(self, name: str, host_us: float | None = 0.0) -> dict[str, Any]:
        """The pair, and a compiled copy of each."""
        models = self.pair(name, host_us=host_us)
        if not self.eager:
            models |= {f"{variant} compiled": copy.deepcopy(model) for variant, model in models.items()}
        for variant, model in models.items():
            for block in model.blocks if variant.endswith("compiled") else ():
                block.compile(**self.how)
        return models

    def try_compiler(self) -> None:
        """Stop here, not after minutes, where torch.compile does not work."""
        try:
            torch.compile(lambda x: x.sin() + 1, **self.how)(torch.ones(8, device=self.device))
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise SystemExit(
                f"torch.compile does not work here ({reason}): install a C compiler and Python's headers, or give "
                "--eager."
            ) from error

    def record(self, names: list[str], path: str) -> None:
        """Write what the parts multiply, all models together, the most valuable first."""
        self.device = torch.device("meta")  # full sizes, nothing computed
        with gt.record() as seen:
            for name in names:
                model = self.model(name)
                with torch.no_grad():
                    model(self._tokens(1, self.prefill))
                    for batch in self.decode:
                        model(self._tokens(batch, 1), model.caches(batch, self.room), self._position())
                loss_of(model, self._tokens(self.batch, self.length)).backward()
        seen.write(path, gpu("h200"))

    # -------------------------------------------------------------------------------------------------------- values

    def values(self, name: str) -> dict[str, Any]:
        """Relative errors of logits and gradients against fp32, on the tokens of a training step."""
        models = self.variants(name)
        models["fp32"] = copy.deepcopy(models["plain"]).float()
        tokens = next(batches(library_bytes(), 1, self.batch, self.length, 0, self.device))
        results = {}
        for variant, model in models.items():
            logits = model(tokens[:, :-1])
            cross_entropy(logits, tokens).backward()
            results[variant] = {"logits": logits.detach(), **{n: p.grad for n, p in model.named_parameters()}}
            model.zero_grad()
        wanted = results.pop("fp32")
        errors = {v: {n: _error(t, wanted[n]) for n, t in tensors.items()} for v, tensors in results.items()}
        judged: dict[str, Any] = {}
        for how in ("", " compiled") if "pack compiled" in errors else ("",):
            plain, tuned = errors[f"plain{how}"], errors[f"pack{how}"]
            ratios = {n: tuned[n] / max(plain[n], LEAST / BOUND) for n in wanted if plain[n] <= NOISE}
            worst = max(ratios, key=lambda n, ratios=ratios: ratios[n])
            judged[f"pack{how}"] = {
                "worst_error_ratio": ratios[worst],
                "worst_tensor": worst,
                "judged": len(ratios),
                "not_judged": [n for n in wanted if n not in ratios],
                "passed": "logits" in ratios and ratios[worst] <= BOUND,
            }
        return {
            "logits_error": {v: e["logits"] for v, e in errors.items()},
            **judged,
            "bound": BOUND,
            "passed": all(found["passed"] for found in judged.values()),
            "served": self._served(),
        }

    # --------------------------------------------------------------------------------------------------------- speed

    def speed(self, name: str) -> dict[str, Any]:
        """Microseconds of each case and variant, tokens/s, and ratios to plain torch."""
        models = self.variants(name, None)
        cases: dict[str, tuple[int, Callable[[Any], Callable[[], Any]]]] = {
            "prefill": (self.prefill, self._prefill),
            **{f"decode {b}": (b, lambda m, b=b: self._decoder(m, b)) for b in self.decode},
            "step": (self.batch * (self.length - 1), self._step),
        }
        out: dict[str, Any] = {}
        for case, (tokens, make) in cases.items():
            calls = {variant: make(model) for variant, model in models.items()}
            taken = self.turns.times(calls)
            del calls
            us = {variant: median(found) for variant, found in taken.items()}
            ratios = {variant: ratio(taken["plain"], found) for variant, found in taken.items()}
            out[case] = {
                "turns": len(taken["plain"]),
                "us": us,
                "tokens_per_s": {v: tokens / t * 1e6 for v, t in us.items()},
                "ratio": {v: found.median for v, found in ratios.items()},
                "ratio_interval": {v: [found.low, found.high] for v, found in ratios.items()},
            }
            if "pack compiled" in us:
                compiled = ratio(taken["plain compiled"], taken["pack compiled"])
                out[case] |= {
                    "ratio_compiled": compiled.median,
                    "ratio_compiled_interval": [compiled.low, compiled.high],
                }
        eager = [found["ratio"]["pack"] for found in out.values()]
        both = [found["ratio_compiled"] for found in out.values() if "ratio_compiled" in found]
        return {
            **out,
            "least_ratio": min(eager),
            "cases_of_103": sum(r >= 1.03 for r in eager),
            **({"least_ratio_compiled": min(both)} if both else {}),
            "served": self._served(),
        }

    def _prefill(self, model: Any) -> Callable[[], Any]:
        tokens = self._tokens(1, self.prefill)

        def call() -> Any:
            with torch.no_grad():
                return model(tokens)

        return call

    def _decoder(self, model: Any, batch: int) -> Callable[[], Any]:
        tokens, position, caches = self._tokens(batch, 1), self._position(), model.caches(batch, self.room)

        def call() -> Any:
            with torch.no_grad():
                return model(tokens, caches, position)

        if not self.cuda:
            return call
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # The stream that ran it: kernels are loaded and workspaces lie ready there, and torch's library has its own.
        with torch.cuda.graph(graph, stream=side):
            held = call()
        return lambda: (graph.replay(), held)[1]

    def _step(self, model: Any) -> Callable[[], Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=self.cuda)
        tokens = self._tokens(self.batch, self.length)

        def call() -> None:
            loss_of(model, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        return call

    # ------------------------------------------------------------------------------------------------------ training

    def training(self, name: str) -> dict[str, Any]:
        """Loss curves (every tenth step) of both variants for each seed, and what of them is judged."""
        data = library_bytes()
        curves: dict[str, list[list[float]]] = {"plain": [], "pack": []}
        falls: dict[str, list[float]] = {"plain": [], "pack": []}
        for seed in range(self.seeds):
            for variant, model in self.pair(name, seed).items():
                losses = self._train(model, data, seed)
                width = min(10, self.steps)
                means = losses[: self.steps // width * width].view(-1, width).mean(1).tolist()
                curves[variant].append([round(v, 4) for v in means])
                falls[variant].append(1 - means[-1] / losses[0].item())
        apart = [_distance(a, b) for a, b in zip(curves["plain"], curves["pack"], strict=True)]
        between = [_distance(a, b) for found in curves.values() for a, b in itertools.combinations(found, 2)]
        return {
            "steps": self.steps,
            "loss_by_ten_steps": curves,
            "fall": falls,
            "least_fall": min(min(found) for found in falls.values()),
            "largest_distance": apart,
            "distance_between_seeds": between,
            "overlay": max(apart) <= min(between, default=0.0),
        }

    def _train(self, model: Any, data: Any, seed: int) -> Any:
        """Train a model; the loss before each step."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=self.cuda)
        losses = []
        for step, tokens in enumerate(batches(data, self.steps, self.batch, self.length, seed, self.device), 1):
            loss = loss_of(model, tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, step / WARMUP)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).float().cpu()

    # ------------------------------------------------------------------------------------------------------- helpers

    def _tokens(self, batch: int, length: int) -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, (batch, length), generator=generator).to(self.device)

    def _position(self) -> Any:
        return torch.tensor([self.room - 1], device=self.device)

    def _served(self) -> dict[str, str]:
        return dict(sorted(gt.served(self.key).items()))

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def write(self, path: str, found: Mapping[str, Any]) -> None:
        """Join ``found`` to the file's summary."""
        text = PROTOCOL.format(
            least=self.turns.least, most=self.turns.most, known=self.turns.known, span=self.turns.span,
            seconds=self.turns.seconds, prefill=self.prefill, cached=self.room - 1, batch=self.batch,
            length=self.length - 1, rate=RATE, warmup=WARMUP,
        )  # fmt: skip
        summary = {**found, "estimated": not self.cuda}
        with closing(open_device("cuda:0" if self.cuda else "emulator:h200")) as device:
            result = blank_result(Path(path).stem, device, text, summary)
        save_joined(path, replace(result, versions={**result.versions, "torch": torch.__version__}))


def save_joined(path: str, result: ResultFile) -> None:
    """Save ``result`` together with the other models and parts that the file has so far."""
    summary = dict(result.summary)
    if Path(path).exists():
        kept = read_result_file(path)
        for name in ("gpu", "driver", "protocol"):
            there, here = getattr(kept, name), getattr(result, name)
            if there != here:
                raise SystemExit(f"{path} has the {name} {there!r}, not {here!r}: write to another file.")
        for name, parts in kept.summary.items():
            if isinstance(parts, Mapping):
                summary[name] = {**parts, **summary.get(name, {})}
    save(path, replace(result, name=Path(path).stem, summary=summary))


def _error(got: Any, wanted: Any) -> float:
    """Relative error in the Frobenius norm."""
    scale = wanted.double().norm().item()
    return (got.double() - wanted.double()).norm().item() / scale if scale else 0.0


def _distance(a: list[float], b: list[float]) -> float:
    """The largest distance of two curves."""
    return max(abs(p - q) for p, q in zip(a, b, strict=True))


if __name__ == "__main__":
    warnings.simplefilter("ignore", gt.PackWarning if not torch.cuda.is_available() else DeprecationWarning)
    main()
