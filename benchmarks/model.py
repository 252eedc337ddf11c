"""Two transformers on a pack beside plain torch: ``python benchmarks/model.py PACK OUT.json`` on a GPU.

With ``--record`` OUT becomes a shape file of what the models multiply, for ``gemmtune tune --shapes``. Parts may be run
one at a time (``--parts``) into one file:

* ``values``: logits and gradients in bf16, plain and on the pack, each against the same model in fp32. Stated bound:
  the relative error (Frobenius norm) on the pack is at most 1.25 x that of plain torch, and 1e-3 where that is less.
* ``speed``: tokens/s of prefill (one sequence) and decoding (batch 1, 16, 64; one CUDA graph a token), and the time of
  a training step; plain, on the pack, and both compiled. The variants take turns; medians of the turns.
* ``training``: 300 steps on the bytes of Python's standard library, three seeds, plain and on the pack.

Everything is in the ``summary`` of the result file. ``--tiny`` tries the script at small sizes without a GPU.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from small_transformers import MODELS, Transformer, batches, library_bytes, loss_of

import gemmtune.torch as gt
from gemmtune.device import open_device
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import read_result_file, save

PROTOCOL = (
    "bf16 models with random weights. Speed: variants in turn, {turns} turns of at least {span:g} s each, medians; "
    "prefill {prefill} tokens, decoding one token a sequence after {context} cached ones, replayed as a CUDA graph; a "
    "training step is forward, backward and AdamW on {batch} x {length} bytes. Ratios are plain time / time (above 1 "
    "is faster)."
)
BOUND, LEAST = 1.25, 1e-3


def main() -> None:
    """Measure the parts asked for and join them to what the file has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("output", help="result file; a shape file with --record")
    parser.add_argument("--parts", default="values,speed,training")
    parser.add_argument("--models", default="llama,gpt2")
    parser.add_argument("--record", action="store_true", help="write the shapes; PACK is not read")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    bench = Bench(options.pack, tiny=options.tiny)
    names = ["tiny", "tiny-gpt2"] if options.tiny else options.models.split(",")
    if options.record:
        bench.record(names, options.output)
        return
    found: dict[str, Any] = {}
    for name in names:
        for part in options.parts.split(","):
            if part == "training":
                found.setdefault(name, {})[part] = bench.training(name, options.steps, options.seeds)
            else:
                found.setdefault(name, {})[part] = getattr(bench, part)(name)
            bench.write(options.output, found)  # what is measured is kept, whatever comes


class Bench:
    """One pack, one device; each part returns plain data."""

    def __init__(self, pack: str, *, tiny: bool) -> None:
        self.pack, self.tiny = pack, tiny
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.turns, self.span = (2, 0.0) if tiny else (7, 0.4)
        self.prefill, self.batch, self.length = (64, 2, 64) if tiny else (4096, 4, 1025)
        self.decode = (1, 2) if tiny else (1, 16, 64)

    def model(self, name: str, seed: int = 0) -> Any:
        """A model with the weights of ``seed``."""
        torch.manual_seed(seed)
        with self.device:
            return Transformer(MODELS[name]).to(torch.bfloat16)

    def pair(self, name: str, seed: int = 0) -> dict[str, Any]:
        """The same model twice: plain, and on the pack."""
        plain = self.model(name, seed)
        tuned = copy.deepcopy(plain)
        gt.optimize_(tuned, self.pack)
        return {"plain": plain, "pack": tuned}

    def record(self, names: list[str], path: str) -> None:
        """Write what the parts multiply, all models together, the most valuable first."""
        with gt.record() as seen:
            for name in names:
                model = self.model(name)
                with torch.no_grad():
                    model(self._tokens(1, self.prefill))
                    for batch in self.decode:
                        model(self._tokens(batch, 1), model.caches(batch), self._position(name))
                loss_of(model, self._tokens(self.batch, self.length)).backward()
        seen.write(path)

    # -------------------------------------------------------------------------------------------------------- values

    def values(self, name: str) -> dict[str, Any]:
        """Relative errors of logits, loss and gradients against fp32."""
        models = self.pair(name)
        models["fp32"] = copy.deepcopy(models["plain"]).float()
        tokens = next(batches(library_bytes(), 1, 2, min(self.length, 513), 0, self.device))
        results = {}
        for variant, model in models.items():
            loss_of(model, tokens).backward()
            with torch.no_grad():
                logits = model(tokens)
            results[variant] = {"logits": logits, **{n: p.grad for n, p in model.named_parameters()}}
            model.zero_grad()
        wanted = results.pop("fp32")
        errors = {v: {n: _error(t, wanted[n]) for n, t in tensors.items()} for v, tensors in results.items()}
        worst = {
            n: errors["pack"][n] / max(errors["plain"][n], LEAST / BOUND) for n in wanted if errors["pack"][n] > LEAST
        }
        ratio = max(worst.values(), default=1.0)
        return {
            "logits_error": {v: e["logits"] for v, e in errors.items()},
            "worst_error_ratio": ratio,
            "worst_tensor": max(worst, key=lambda n: worst[n], default=""),
            "bound": BOUND,
            "passed": ratio <= BOUND,
            "served": self._served(),
        }

    # --------------------------------------------------------------------------------------------------------- speed

    def speed(self, name: str) -> dict[str, Any]:
        """Microseconds of each case and variant, tokens/s, and ratios to plain torch."""
        models = self.pair(name)
        compiled = {f"{v} compiled": torch.compile(copy.deepcopy(m)) for v, m in models.items()}
        models |= {} if self.tiny else compiled
        cases: dict[str, tuple[int, Callable[[Any], Callable[[], Any]]]] = {
            "prefill": (self.prefill, lambda m: self._prefill(m)),
            **{f"decode {b}": (b, lambda m, b=b: self._decoder(m, name, b)) for b in self.decode},
            "step": (self.batch * (self.length - 1), lambda m: self._step(m)),
        }
        out: dict[str, Any] = {}
        for case, (tokens, make) in cases.items():
            calls = {variant: make(model) for variant, model in models.items()}
            us = self._times(calls)
            del calls
            out[case] = {
                "us": us,
                "tokens_per_s": {v: tokens / t * 1e6 for v, t in us.items()},
                "ratio": {v: us["plain"] / t for v, t in us.items()},
            }
            if "pack compiled" in us:
                out[case]["ratio_compiled"] = us["plain compiled"] / us["pack compiled"]
        ratios = [found["ratio"]["pack"] for found in out.values()]
        out["least_ratio"] = min(ratios)
        out["cases_of_103"] = sum(r >= 1.03 for r in ratios)
        return out

    def _prefill(self, model: Any) -> Callable[[], Any]:
        tokens = self._tokens(1, self.prefill)

        def call() -> Any:
            with torch.no_grad():
                return model(tokens)

        return call

    def _decoder(self, model: Any, name: str, batch: int) -> Callable[[], Any]:
        tokens, position = self._tokens(batch, 1), self._position(name)
        caches = (model._orig_mod if hasattr(model, "_orig_mod") else model).caches(batch)

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
        with torch.cuda.graph(graph):
            held = call()
        return lambda: (graph.replay(), held)[0]

    def _step(self, model: Any) -> Callable[[], Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=self.cuda)
        tokens = self._tokens(self.batch, self.length)

        def call() -> None:
            loss_of(model, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        return call

    def _times(self, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
        """Median microseconds of each call, taking turns in an order that turns round."""
        for call in calls.values():
            for _ in range(3):
                call()
        self._wait()
        samples: dict[str, list[float]] = {variant: [] for variant in calls}
        for turn in range(self.turns):
            order = list(calls.items())
            for variant, call in order if turn % 2 == 0 else reversed(order):
                samples[variant].append(self._sample(call))
        return {variant: median(found) for variant, found in samples.items()}

    def _sample(self, call: Callable[[], Any]) -> float:
        count, begin = 0, time.perf_counter()
        while count < 2 or time.perf_counter() - begin < self.span / 4:  # untimed: clocks settle to this load
            call()
            self._wait()
            count += 1
        count *= 3
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self._wait()
        return (time.perf_counter() - begin) / count * 1e6

    # ------------------------------------------------------------------------------------------------------ training

    def training(self, name: str, steps: int, seeds: int) -> dict[str, Any]:
        """Loss curves (every tenth step) of both variants for each seed, and what of them is judged."""
        data = library_bytes()
        curves: dict[str, list[list[float]]] = {"plain": [], "pack": []}
        for seed in range(seeds):
            for variant, model in self.pair(name, seed).items():
                optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=self.cuda)
                losses = []
                for tokens in batches(data, steps, self.batch, min(self.length, 513), seed, self.device):
                    loss = loss_of(model, tokens)
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.detach())
                curve = torch.stack(losses).float().cpu()
                width = min(10, steps)
                means = curve[: steps // width * width].view(-1, width).mean(1)
                curves[variant].append([round(v, 4) for v in means.tolist()])
        apart = [
            max(abs(p - q) for p, q in zip(a, b, strict=True))
            for a, b in zip(curves["plain"], curves["pack"], strict=True)
        ]
        falls = {v: [1 - c[-1] / c[0] for c in found] for v, found in curves.items()}
        return {"steps": steps, "loss_by_ten_steps": curves, "fall": falls, "largest_distance": apart}

    # ------------------------------------------------------------------------------------------------------- helpers

    def _tokens(self, batch: int, length: int) -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, (batch, length), generator=generator).to(self.device)

    def _position(self, name: str) -> Any:
        return torch.tensor([MODELS[name].context // 2], device=self.device)

    def _served(self) -> dict[str, str]:
        return dict(sorted(gt.served(gt.use(self.pack)).items()))

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def write(self, path: str, found: dict[str, Any]) -> None:
        """Join ``found`` to the file's summary."""
        summary = dict(read_result_file(path).summary) if Path(path).exists() else {}
        for name, parts in found.items():
            summary[name] = {**summary.get(name, {}), **parts}
        text = PROTOCOL.format(
            turns=self.turns, span=self.span, prefill=self.prefill, context=2048, batch=self.batch, length=self.length
        )
        with closing(open_device("cuda:0" if self.cuda else "emulator:h200")) as device:
            result = blank_result(Path(path).stem, device, text)
        versions = {**result.versions, "torch": torch.__version__}
        save(path, replace(result, versions=versions, summary={**summary, "estimated": not self.cuda}))


def _error(got: Any, wanted: Any) -> float:
    """Relative error in the Frobenius norm."""
    scale = wanted.double().norm().item()
    return (got.double() - wanted.double()).norm().item() / scale if scale else 0.0


if __name__ == "__main__":
    warnings.simplefilter("ignore", gt.PackWarning if not torch.cuda.is_available() else DeprecationWarning)
    main()
