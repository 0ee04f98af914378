"""Correctness on this device: ``lf.cross_entropy`` and ``lf.sample_scores`` against torch in float64, and batches of
images against those that the loader's threads make.

Sections: ``smoke`` (a little of everything, every copy path), ``scores`` (every number of classes and type, layouts with
odd strides and offsets), ``repeat`` (two runs give the same bits), ``gradients`` (as scores, forward and backward, with
ignored rows, smoothing, class weights and every reduction), ``opinfo`` (torch's own sample inputs for its cross entropy),
``edges`` (empty batch, bad targets, more than 2^31 elements), ``images`` (every step of ``lf.ImageTransform`` that kernels
do, byte for byte), ``mail`` (20,000 small batches scored on four streams: every id comes home once).

Ends with status 1 if anything is wrong. ``--device cpu --quick`` tries the program itself.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from checking import IGNORE, NARROW, WIDE, Check, short, terms_of
from common import Report, arguments, attempt, failed, logits, synchronize, targets
from hook import capture

import lossfeed as lf

CLASSES = (1, 2, 3, 10, 33, 100, 1000, 1001, 3001, 32000, 50257, 128256)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Logits a case has at most: the float64 twin and its gradient must fit beside it.
ELEMENTS_MAX = 1 << 22

VARIANTS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"weight": True},
    {"weight": True, "label_smoothing": 0.3, "reduction": "none"},
    {"overwrite_logits": True},
]

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


def shapes(report: Report) -> Iterator[tuple[int, int]]:
    """(rows, classes): one row, odd numbers, both sides of 512 (one launch or two), and large batches of few classes; as
    long as there is time."""
    for classes in (1, 10, 33) if report.quick else CLASSES:
        for rows in (9,) if report.quick else (1, 2, 7, 64, 511, 512, 513, 4096, 20000):
            if rows * classes <= ELEMENTS_MAX or rows == 1:
                if ends(report, f"{rows}x{classes}"):
                    return
                yield rows, classes


def ends(report: Report, before: str) -> bool:
    """Whether the time is up, which is noted."""
    if report.left() > 2:
        return False
    report.data["not_reached"].append(f"{report.under_way} from {before} on")
    return True


def batch(rows: int, classes: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and targets of which every fifth is ignored."""
    z, y = logits(rows, classes, dtype, device, seed=rows + classes), targets(rows, classes, device, seed=rows)
    y[4::5] = IGNORE
    return z, y


def score_case(check: Check, what: str, z: torch.Tensor, y: torch.Tensor) -> None:
    """Every column of ``lf.sample_scores``."""
    tolerance, kind = WIDE if z.dtype == torch.float64 else NARROW, short(z.dtype)
    found = lf.sample_scores(z, y)
    wide = z.double()
    valid = y != IGNORE
    index = torch.where(valid, y, 0).unsqueeze(1)
    p = wide.softmax(1)
    loss = F.cross_entropy(wide, y, reduction="none")
    nan = torch.full_like(loss, float("nan"))
    # 1 − p_y as the sum of the others: the textbook form cancels where p_y is near 1.
    others = p.scatter(1, index, 0.0)
    norm = (others.square().sum(1) + others.sum(1).square()).sqrt()
    entropy = torch.special.entr(p).sum(1)
    check.close(f"{what} loss", found.loss, loss, tolerance, f"{kind} loss")
    check.close(f"{what} grad_norm", found.grad_norm, torch.where(valid, norm, nan), tolerance, f"{kind} grad_norm")
    check.close(f"{what} entropy", found.entropy, torch.where(valid, entropy, nan), tolerance, f"{kind} entropy")
    first = z.float().argmax(1) if z.dtype != torch.float64 else z.argmax(1)
    ties = (z == z.gather(1, index)).sum(1) > 1
    right = torch.where(valid, first == y, torch.zeros_like(valid))
    check.that(f"{what} correct", ((found.correct == right) | ties).all())
    # Counts are exact: of the float32 losses that were returned.
    key = torch.where(valid, found.loss.float(), torch.full_like(found.loss.float(), float("inf")))
    count = torch.searchsorted(key.sort().values, key)
    count = torch.where(valid, count, torch.full_like(count, -1))
    check.that(f"{what} rank_count", (found.rank_count.long() == count).all())
    check.close(f"{what} rank_score", found.rank_score, torch.where(valid, (count + 10.0).log(), nan), 1e-6, "rank_score")


def gradient_case(check: Check, what: str, z: torch.Tensor, y: torch.Tensor, keywords: dict[str, Any]) -> None:
    """Value and gradient of ``lf.cross_entropy``; the upstream gradient is in the loss's own type."""
    given, kind = dict(keywords), short(z.dtype)
    if given.get("weight"):
        given["weight"] = torch.linspace(0.2, 2.0, z.shape[1], device=z.device, dtype=z.dtype)
    wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in given.items() if k != "overwrite_logits"}
    z64 = z.detach().double().requires_grad_()
    ours_in = z.detach().requires_grad_()
    # What is written over may be no leaf.
    ours = lf.cross_entropy(ours_in * 1.0 if "overwrite_logits" in given else ours_in, y, **given)
    theirs = F.cross_entropy(z64, y, **wide)
    check.that(f"{what} dtype", ours.dtype == z.dtype)
    check.value(f"{what} value", ours, theirs, f"{kind} value")
    upstream = torch.linspace(0.5, 1.5, len(y), device=z.device).to(z.dtype) if theirs.dim() else torch.tensor(1.25, device=z.device, dtype=z.dtype)
    ours.backward(upstream)
    theirs.backward(upstream.double())
    reduction = given.get("reduction", "mean")
    terms = terms_of(z64.detach(), y, upstream.double(), given.get("weight"), given.get("label_smoothing", 0.0), reduction == "mean")
    check.gradient(f"{what} gradient", ours_in.grad, z64.grad, terms, f"{kind} gradient")


def smoke(report: Report) -> dict[str, Any]:
    """A little of everything, in seconds: whether the rest means anything."""
    check, device = Check(), report.device
    for dtype, (rows, classes) in itertools.product(DTYPES, ((7, 10), (600, 33), (3, 300 if report.quick else 50257))):
        z, y = batch(rows, classes, dtype, device)
        score_case(check, f"{rows}x{classes} {short(dtype)}", z, y)
        gradient_case(check, f"{rows}x{classes} {short(dtype)}", z, y, {})
    if device.type == "cuda":
        from lossfeed._torch import cuda

        check.that("our kernels run, not torch's operators", cuda.kernels(device) is not None)
        z, y = batch(64, 100, torch.bfloat16, device)
        z.requires_grad_()
        graph, loss = capture(lambda: torch.autograd.grad(lf.cross_entropy(z, y), z)[0])
        for number in range(10):
            with torch.no_grad():
                z.copy_(logits(64, 100, torch.bfloat16, device, seed=number))
            graph.replay()
            check.that(f"replay {number}", torch.equal(loss, torch.autograd.grad(lf.cross_entropy(z, y), z)[0]))
    x = np.random.default_rng(0).integers(0, 256, (256, 1000), dtype=np.uint8)
    # What may end the context comes last.
    for path in ("gathered", "mapped", "batched", "auto") if device.type == "cuda" else ("auto",):
        why = attempt(lambda path=path: one_path(check, device, x, path))
        if failed(why) and path in ("mapped", "batched") and why["error"].startswith("DeviceError"):
            print(f"  left out here: {path}")  # not every GPU can; one that has been harmed fails what follows
        elif failed(why):
            check.fail(f"copy path {path}: {why['error']}")
    return check.result(report)


def one_path(check: Check, device: torch.device, x: np.ndarray[Any, Any], path: str) -> None:
    """Two epochs by one way to the device, out of the cache the second time, and the scores' way back."""
    keywords: dict[str, Any] = {"device": str(device), "copy_path": path, "cache": 1.0, "score": "loss", "framework": "torch", "stats": False}
    with lf.Loader((x, np.arange(len(x))), 32, seed=1, **keywords) as loader:
        for _ in range(2):
            for found in loader:
                ids = found.ids.cpu()
                same = torch.equal(found.data.cpu(), torch.from_numpy(x)[ids]) and torch.equal(found.target.cpu(), ids)
                check.that(f"copy path {path}: bytes", same)
                loader.score_losses(found.ids.float(), found)
        loader.state_dict()
        check.that(f"copy path {path}: scores", torch.equal(loader.importance(), torch.arange(len(x)).float()))


def scores(report: Report) -> dict[str, Any]:
    """Scores of every shape, type and layout."""
    check = Check()
    for dtype in DTYPES:
        for rows, classes in shapes(report):
            base, y = batch(rows, classes, dtype, report.device)
            for name, lay in LAYOUTS.items():
                score_case(check, f"{rows}x{classes} {short(dtype)} {name}", lay(base), y)
    return check.result(report)


def gradients(report: Report) -> dict[str, Any]:
    """Gradients of every shape, type and layout."""
    check = Check()
    for dtype in DTYPES:
        for rows, classes in shapes(report):
            base, y = batch(rows, classes, dtype, report.device)
            for number, (name, lay) in enumerate(LAYOUTS.items()):
                # All variants on the plain layout, one on each of the others: the layouts are a matter of reading.
                for keywords in VARIANTS if name == "contiguous" else [VARIANTS[number % len(VARIANTS)]]:
                    gradient_case(check, f"{rows}x{classes} {short(dtype)} {name} {keywords}", lay(base.clone()), y, keywords)
    return check.result(report)


def repeat(report: Report) -> dict[str, Any]:
    """The same input gives the same bits."""
    check = Check()
    for dtype in DTYPES:
        for rows, classes in shapes(report):
            z, y = batch(rows, classes, dtype, report.device)
            first, second = lf.sample_scores(z, y), lf.sample_scores(z, y)
            for name, a, b in zip(first._fields, first, second, strict=True):
                check.that(f"{rows}x{classes} {short(dtype)} {name} differs", torch.equal(a, b) or torch.equal(a.nan_to_num(7), b.nan_to_num(7)))
    return check.result(report)


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
        terms = terms_of(twin.detach(), y[-8:], torch.ones((), device=device), None, 0.0, False)
        check.gradient("more than 2^31 elements, last gradients", z.grad[-8:], twin.grad, terms, "large")
    return check.result(report)


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
            if sample.args[0].is_floating_point() and report.device.type == "cpu":
                continue  # probabilities are torch's own operators' there, which round to 16 bits on the way
            # Those that require a gradient are torch's on a device too.
            sample.args = tuple(a.detach() for a in sample.args)
            z64 = sample.input.detach().double().requires_grad_()
            ours = lf.cross_entropy(sample.input, *sample.args, **sample.kwargs)
            theirs = op(z64, *map(doubled, sample.args), **{name: doubled(v) for name, v in sample.kwargs.items()})
            check.value(f"{what} value", ours, theirs, f"{short(dtype)} value")
            pair = [torch.autograd.grad(v.sum(), z, allow_unused=True)[0] for v, z in ((ours, sample.input), (theirs, z64))]
            if all(g is not None for g in pair):
                rows = [g.movedim(1, -1).flatten(0, -2) if g.dim() > 1 else g.unsqueeze(0) for g in pair]
                check.gradient(f"{what} gradient", *rows, 4 * rows[1].abs().amax().expand_as(rows[1]), f"{short(dtype)} gradient")
            if dtype == torch.float64 and sample.input.numel() <= 200:
                try:
                    torch.autograd.gradcheck(lambda z, s=sample: lf.cross_entropy(z, *s.args, **s.kwargs), (sample.input,))
                    check.that(what, True)
                except RuntimeError as error:
                    check.fail(f"{what} gradcheck: {str(error)[:200]}")
    return check.result(report)


def doubled(value: Any) -> Any:
    """A floating-point tensor in float64; anything else as it is."""
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


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
                if ends(report, f"{side} x {channels} {name}"):
                    break
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
    return check.result(report)


def mail(report: Report) -> dict[str, Any]:
    """Small batches scored on four streams in turn, by both hooks and by replays of a captured one: every id comes home
    once, with its own score."""
    check, device, rows = Check(), report.device, 8
    batches = 60 if report.quick else 20_000
    streams = [torch.cuda.Stream() for _ in range(4)] if device.type == "cuda" else []

    def own(ids: torch.Tensor) -> torch.Tensor:
        return (ids % 9973).float() / 1000

    x = np.zeros((rows * batches, 1), np.float32)
    with lf.Loader((x, np.zeros(len(x), np.int64)), rows, seed=0, device=str(device), score="loss", framework="torch", stats=False) as loader:
        walk = iter(loader)
        static = next(walk)
        # Outside of a capture first: it loads the kernels and makes the mailbox.
        loader.score_losses(F.softplus(own(static.ids)), static)
        graph = capture(lambda: loader.score_losses(F.softplus(own(static.ids)), static), warmup=0)[0] if streams else None
        for number in range(1, batches):
            # The replayed batch's memory is one stream's.
            with torch.cuda.stream(streams[number % 4] if streams else None):
                found = next(walk)
                if graph is not None and number % 8 == 0:
                    static.copy_(found)
                    graph.replay()
                elif number % 2:
                    loader.score_losses(F.softplus(own(found.ids)), found)
                else:
                    there = own(found.ids)
                    loader.score(torch.stack([torch.zeros_like(there), there], 1), found)
        synchronize(device)
        loader.state_dict()
        stats = loader.stats()
        expected = F.softplus(own(torch.arange(len(x))).double())
        importance = loader.importance()
        lost = importance.isnan()
        check.close("scores by id", importance[~lost], expected[~lost], NARROW, "mailed")
        check.that("a score that did not come home was counted as dropped", int(lost.sum()) == int(stats["scores_dropped_total"]))
        check.that("every score came home once", int(stats["scores_total"]) == len(x) - int(lost.sum()) and stats["scores_repeated_total"] == 0)
        report.figure("scores dropped", int(lost.sum()), f"of {len(x)}", most=0, n=len(x))
    return check.result(report)


SECTIONS = {
    "smoke": smoke,
    "scores": scores,
    "repeat": repeat,
    "gradients": gradients,
    "opinfo": opinfo,
    "edges": edges,
    "images": images,
    "mail": mail,
}


def main() -> int:
    """Runs the sections; 0 if nothing is wrong."""
    report = Report("correct", arguments(__doc__).parse_args())
    for name, body in SECTIONS.items():
        report.section(name, lambda body=body: body(report))
    wrong = [name for name, found in report.data["sections"].items() if failed(found) or found.get("wrong")]
    report.data["passed"] = not wrong
    report.close()
    print(f"{'WRONG' if wrong else 'all correct'} on {report.data['machine'].get('name', report.device)}")
    if wrong:
        print("AGAIN:", *(f"--only {name}" for name in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
