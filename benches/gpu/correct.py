"""Correctness on this device: ``lf.cross_entropy`` and ``lf.sample_scores`` against torch in float64, and batches of
images against those that the loader's threads make.

Sections: ``scores`` (every number of classes and type, layouts with odd strides and offsets), ``gradients`` (the same,
forward and backward, with ignored rows, smoothing, class weights and every reduction), ``repeat`` (two runs give the
same bits), ``edges`` (empty batch, bad targets, more than 2^31 elements), ``opinfo`` (torch's own sample inputs for its
cross entropy), ``images`` (every step of ``lf.ImageTransform`` that kernels do, byte for byte).

Ends with status 1 if anything is wrong. ``--device cpu --quick`` tries the program itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import Report, arguments, failed, logits, synchronize, targets

import lossfeed as lf

CLASSES = (1, 2, 3, 10, 33, 100, 1000, 1001, 3001, 32000, 50257, 128256)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Logits a case has at most: the float64 twin and its gradient must fit beside it.
ELEMENTS_MAX = 1 << 22
IGNORE = -100

#: (relative to 1 + |expected|) of per-sample values, which are float32 unless the logits are float64.
SCORE_TOLERANCE = {torch.float64: 1e-11}
#: Of results in the logits' own type: a few units in its last place.
RESULT_TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 3e-5, torch.float64: 1e-11}

Layout = Callable[[torch.Tensor], torch.Tensor]


def padded(extra: int, offset: int) -> Layout:
    """Rows `extra` elements further apart than they are long, the first `offset` elements into its storage."""

    def lay(z: torch.Tensor) -> torch.Tensor:
        rows, classes = z.shape
        stride = classes + extra
        storage = torch.full((offset + rows * stride,), float("nan"), dtype=z.dtype, device=z.device)
        view = storage.as_strided((rows, classes), (stride, 1), offset)
        view.copy_(z)
        return view

    return lay


#: Every one holds the same numbers, except the last, which repeats the first row.
LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda z: z,
    "stride C+1, offset 1": padded(1, 1),
    "stride C+3, offset 3": padded(3, 3),
    "stride C+8, offset 5": padded(8, 5),
    "transposed": lambda z: z.t().contiguous().t(),
    "every second column": lambda z: torch.stack((z, z + 1), 2).flatten(1)[:, ::2],
    "one row repeated": lambda z: z[:1].expand(z.shape[0], -1),
}


def shapes(quick: bool) -> Iterator[tuple[int, int]]:
    """(rows, classes): one row, odd numbers, both sides of 512 (one launch or two), and large batches of few
    classes."""
    for classes in (1, 10, 33) if quick else CLASSES:
        for rows in (9,) if quick else (1, 2, 7, 64, 511, 512, 513, 4096, 20000):
            if rows * classes <= ELEMENTS_MAX or rows == 1:
                yield rows, classes


class Check:
    """Counts comparisons, keeps the worst and the first failures."""

    def __init__(self) -> None:
        self.compared = 0
        self.failures: list[str] = []
        self.failed = 0
        self.worst: dict[str, float] = {}

    def close(self, what: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float, kind: str) -> None:
        """`actual` within ``tolerance * (1 + |expected|)``; NaN and infinities must be where they are expected."""
        self.compared += 1
        a, e = actual.detach().double(), expected.detach().double()
        if a.shape != e.shape:
            self.fail(f"{what}: shape {tuple(a.shape)} for {tuple(e.shape)}")
            return
        same = (a == e) | (a.isnan() & e.isnan())
        error = torch.where(same, torch.zeros_like(a), (a - e).abs() / (1 + e.abs()))
        error = torch.where(error.isnan(), torch.full_like(error, float("inf")), error)
        worst = float(error.max()) if error.numel() else 0.0
        self.worst[kind] = max(self.worst.get(kind, 0.0), worst)
        if worst > tolerance:
            at = int(error.flatten().argmax())
            self.fail(f"{what}: {float(a.flatten()[at]):.9g} for {float(e.flatten()[at]):.9g} at {at} (off by {worst:.2e}, {tolerance:.0e} allowed)")

    def that(self, what: str, true: Any) -> None:
        """`true`."""
        self.compared += 1
        if not bool(true):
            self.fail(what)

    def fail(self, text: str) -> None:
        """Counts a failure and keeps the first twenty."""
        self.failed += 1
        if len(self.failures) < 20:
            self.failures.append(text)
            print(f"  WRONG {text}")

    def result(self) -> dict[str, Any]:
        """What the section records."""
        print(f"  {self.compared} comparisons, {self.failed} wrong")
        return {"compared": self.compared, "wrong": self.failed, "failures": self.failures, "worst": self.worst}


def batch(rows: int, classes: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and targets of which every fifth is ignored."""
    z, y = logits(rows, classes, dtype, device, seed=rows + classes), targets(rows, classes, device, seed=rows)
    y[4::5] = IGNORE
    return z, y


def short(dtype: torch.dtype) -> str:
    """float16 and so on."""
    return str(dtype).removeprefix("torch.")


def scores(report: Report) -> dict[str, Any]:
    """Every column of ``lf.sample_scores``."""
    check = Check()
    for dtype in DTYPES:
        tolerance = SCORE_TOLERANCE.get(dtype, 3e-5)
        for rows, classes in shapes(report.quick):
            base, y = batch(rows, classes, dtype, report.device)
            for name, lay in LAYOUTS.items():
                z = lay(base)
                what = f"{rows}x{classes} {short(dtype)} {name}"
                found = lf.sample_scores(z, y)
                wide = z.double()
                valid = y != IGNORE
                index = torch.where(valid, y, 0).unsqueeze(1)
                p = wide.softmax(1)
                loss = F.cross_entropy(wide, y, reduction="none")
                nan = torch.full_like(loss, float("nan"))
                # 1 − p_y as the sum of the others: the textbook form cancels where p_y is near 1.
                others = p.scatter(1, index, 0.0)
                norm = ((others.square().sum(1)) + others.sum(1).square()).sqrt()
                entropy = torch.special.entr(p).sum(1)
                kind = short(dtype)
                check.close(f"{what} loss", found.loss, loss, tolerance, f"{kind} loss")
                check.close(f"{what} grad_norm", found.grad_norm, torch.where(valid, norm, nan), tolerance, f"{kind} grad_norm")
                check.close(f"{what} entropy", found.entropy, torch.where(valid, entropy, nan), tolerance, f"{kind} entropy")
                first = z.float().argmax(1) if dtype != torch.float64 else z.argmax(1)
                ties = (z == z.gather(1, index)).sum(1) > 1
                right = torch.where(valid, first == y, torch.zeros_like(valid))
                check.that(f"{what} correct", ((found.correct == right) | ties).all())
                # Counts are exact: of the float32 losses that were returned.
                key = torch.where(valid, found.loss.float(), torch.full_like(found.loss.float(), float("inf")))
                count = torch.searchsorted(key.sort().values, key)
                count = torch.where(valid, count, torch.full_like(count, -1))
                check.that(f"{what} rank_count", (found.rank_count.long() == count).all())
                rank = torch.where(valid, (count + 10.0).log(), nan)
                check.close(f"{what} rank_score", found.rank_score, rank, 1e-6, "rank_score")
    return check.result()


def gradients(report: Report) -> dict[str, Any]:
    """Value and gradient of ``lf.cross_entropy``."""
    check = Check()
    variants: list[dict[str, Any]] = [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"label_smoothing": 0.1},
        {"weight": True},
        {"weight": True, "label_smoothing": 0.3, "reduction": "none"},
    ]
    for dtype in DTYPES:
        tolerance = RESULT_TOLERANCE[dtype]
        for rows, classes in shapes(report.quick):
            base, y = batch(rows, classes, dtype, report.device)
            upstream = torch.linspace(0.5, 1.5, rows, device=report.device, dtype=torch.float64)
            for number, (name, lay) in enumerate(LAYOUTS.items()):
                # All variants on the plain layout, one on each of the others: the layouts are a matter of reading.
                for keywords in variants if name == "contiguous" else [variants[number % len(variants)]]:
                    what = f"{rows}x{classes} {short(dtype)} {name} {keywords}"
                    given = dict(keywords)
                    if given.get("weight"):
                        given["weight"] = torch.linspace(0.2, 2.0, classes, device=report.device, dtype=dtype)
                    wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
                    z = lay(base.clone()).detach().requires_grad_()
                    z64 = z.detach().double().requires_grad_()
                    ours, theirs = lf.cross_entropy(z, y, **given), F.cross_entropy(z64, y, **wide)
                    check.that(f"{what} dtype", ours.dtype == dtype)
                    check.close(f"{what} value", ours, theirs, tolerance, f"{short(dtype)} value")
                    if theirs.dim():
                        ours.backward(upstream.to(dtype))
                        theirs.backward(upstream.to(dtype).double())
                    else:
                        ours.backward()
                        theirs.backward()
                    check.close(f"{what} gradient", z.grad, z64.grad, tolerance, f"{short(dtype)} gradient")
    return check.result()


def repeat(report: Report) -> dict[str, Any]:
    """The same input gives the same bits."""
    check = Check()
    for dtype in DTYPES:
        for rows, classes in shapes(report.quick):
            z, y = batch(rows, classes, dtype, report.device)
            first, second = lf.sample_scores(z, y), lf.sample_scores(z, y)
            for name, a, b in zip(first._fields, first, second, strict=True):
                check.that(f"{rows}x{classes} {short(dtype)} {name} differs", torch.equal(a, b) or torch.equal(a.nan_to_num(7), b.nan_to_num(7)))
    return check.result()


def edges(report: Report) -> dict[str, Any]:
    """What is not an ordinary batch."""
    check, device = Check(), report.device
    empty = lf.sample_scores(torch.empty(0, 5, device=device), torch.empty(0, dtype=torch.int64, device=device))
    check.that("an empty batch has no scores", empty.loss.numel() == 0)

    z, y = batch(300, 10, torch.float32, device)
    for bad in (10, -7, 2**40):
        wrong = y.clone()
        wrong[17] = bad
        try:
            found = lf.sample_scores(z, wrong)
            synchronize(device)
        except lf.Error as error:
            check.that(f"target {bad} is refused with its row: {error}", "17" in str(error))
        else:
            check.that(f"target {bad}: no rank, NaN loss", found.rank_count[17] == -1 and found.loss[17].isnan())
        # Whatever happened, the device goes on. A flag raised late may meet the next call once.
        for _ in range(2):
            try:
                good = lf.sample_scores(z, y)
                break
            except lf.Error:
                continue
        check.close(f"after target {bad}", good.loss, F.cross_entropy(z.double(), y, reduction="none"), 3e-5, "after a bad target")

    nasty = torch.zeros(6, 4, device=device)
    nasty[0, 1], nasty[1, 2], nasty[2], nasty[3, 3] = float("nan"), float("inf"), float("-inf"), float("-inf")
    found = lf.sample_scores(nasty, torch.tensor([0, 0, 0, 3, 1, 1], device=device))
    check.that("rows without a softmax have no rank", (found.rank_count[:3] == -1).all() and found.loss[:3].isnan().all())
    check.that("a masked target has an infinite loss and no rank", found.loss[3].isinf() and found.rank_count[3] == -1)
    check.that("ties are equal", found.rank_count[4] == 0 and found.rank_count[5] == 0)

    if device.type == "cuda" and not report.quick and torch.cuda.mem_get_info(device)[0] > 24 << 30:
        rows, classes = 43_000, 50_257  # 2.16e9 elements
        z, y = logits(rows, classes, torch.bfloat16, device), targets(rows, classes, device)
        found = lf.sample_scores(z, y)
        tail = F.cross_entropy(z[-64:].double(), y[-64:], reduction="none")
        check.close("more than 2^31 elements, last rows", found.loss[-64:], tail, 3e-5, "large")
        z.requires_grad_()
        lf.cross_entropy(z, y, reduction="sum").backward()
        twin = z[-8:].detach().double().requires_grad_()
        F.cross_entropy(twin, y[-8:], reduction="sum").backward()
        check.close("more than 2^31 elements, last gradients", z.grad[-8:], twin.grad, 3e-2, "large")
    return check.result()


def opinfo(report: Report) -> dict[str, Any]:
    """torch's sample inputs for ``nn.functional.cross_entropy``, forward and gradient, and gradcheck in float64."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as missing:
        print(f"  skipped: {missing}")
        return {"skipped": str(missing)}
    op = next(o for o in op_db if o.name == "nn.functional.cross_entropy")
    check = Check()
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes(report.device.type):
            continue
        for k, sample in enumerate(op.sample_inputs(str(report.device), dtype, requires_grad=True)):
            what = f"{short(dtype)} sample {k} {tuple(sample.input.shape)} {sample.kwargs}"
            tolerance = RESULT_TOLERANCE[dtype]
            ours = lf.cross_entropy(sample.input, *sample.args, **sample.kwargs)
            theirs = op(sample.input, *sample.args, **sample.kwargs)
            check.close(f"{what} value", ours, theirs, tolerance, f"{short(dtype)} value")
            pair = [torch.autograd.grad(v.sum(), sample.input, allow_unused=True)[0] for v in (ours, theirs)]
            if all(g is not None for g in pair):
                check.close(f"{what} gradient", pair[0], pair[1], tolerance, f"{short(dtype)} gradient")
            if dtype == torch.float64 and sample.input.numel() <= 200:
                try:
                    torch.autograd.gradcheck(lambda z, s=sample: lf.cross_entropy(z, *s.args, **s.kwargs), (sample.input,))
                    check.that(what, True)
                except RuntimeError as error:
                    check.fail(f"{what} gradcheck: {str(error)[:200]}")
    return check.result()


def transforms(channels: int) -> dict[str, lf.ImageTransform]:
    """Every step that kernels do, alone and together."""
    mean, std = (0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels]
    half: dict[str, Any] = {"dtype": "float16", "mean": mean, "std": std}
    colours: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.5, "jitter": 0.8, "grayscale": 0.2}
    return {
        "normalised": lf.ImageTransform(mean=mean, std=std, padding=2, flip=0.5),
        "erased": lf.ImageTransform(**half, layout="NHWC", erase=0.5),
        "mixed": lf.ImageTransform(**half, padding=1, flip=0.5, mixup=0.4, cutmix=1.0),
        "colours": lf.ImageTransform("uint8", layout="NHWC", **colours),
        "colours, cropped": lf.ImageTransform("bfloat16", **colours, padding=2, flip=0.5),
        "trivial": lf.ImageTransform("uint8", augment="trivial"),
        "rand": lf.ImageTransform(**half, padding=2, flip=0.5, augment={"name": "rand", "ops": 3, "magnitude": 20, "fill": 99}),
        "all": lf.ImageTransform(
            **half, **colours, crop=(24, 28), padding=3, flip=0.5, augment="trivial", erase=0.25, mixup=0.4, cutmix=1.0
        ),
        "resized": lf.ImageTransform(**half, crop=(40, 36), scale=(0.1, 1.0), flip=0.5, **colours, augment="rand"),
    }


def images(report: Report) -> dict[str, Any]:
    """Batches on the device beside the same batches in host memory."""
    check = Check()
    rng = np.random.default_rng(0)
    for side in ((24, 28),) if report.quick else ((32, 32), (37, 53), (224, 224)):
        for channels in (1, 3):
            rows, batch_size = (16, 8) if report.quick else (512, 64)
            noise = rng.integers(0, 256, (rows, *side, channels), dtype=np.uint8)
            noise[1::4] = noise[1::4] // 9 + 80  # what stretching and equalising change
            noise[2::4, :, :, :] = noise[2::4, :1, :1, :]
            data = noise, np.arange(rows)
            for name, transform in transforms(channels).items():
                keywords: dict[str, Any] = {"shuffle": True, "seed": 3, "transform": transform, "framework": "torch", "stats": False}
                for cache in ({}, {"cache": 1.0, "cache_form": "decoded"}):
                    there = lf.Loader(data, batch_size, device=str(report.device), **keywords, **cache)
                    with there, lf.Loader(data, batch_size, **keywords) as here:
                        for epoch in range(1 if report.quick else 3):
                            for number, (a, b) in enumerate(zip(there, here, strict=True)):
                                same = all(torch.equal(getattr(a, f).cpu(), getattr(b, f)) for f in ("data", "target", "ids"))
                                if a.mix is not None and b.mix is not None:
                                    same &= torch.equal(a.mix.target.cpu(), b.mix.target)
                                check.that(f"{side} x {channels} {name} {cache}: batch {number} of epoch {epoch}", same)
    return check.result()


SECTIONS = {"scores": scores, "gradients": gradients, "repeat": repeat, "edges": edges, "opinfo": opinfo, "images": images}


def main() -> int:
    """Runs the sections; 0 if nothing is wrong."""
    options = arguments(__doc__).parse_args()
    report = Report("correct", options)
    wrong = 0
    for name, body in SECTIONS.items():
        result = report.section(name, lambda body=body: body(report))
        if result is not None:
            wrong += 1 if failed(result) else result.get("wrong", 0)
    report.data["passed"] = wrong == 0
    report.write()
    print(f"{'all correct' if wrong == 0 else f'{wrong} WRONG'} on {report.data['machine'].get('name', report.device)}; {report.path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
