"""Calls for type checkers alone: those that are right, and each of the wrong ones, marked. A mark that is not needed is
an error too, so a keyword that takes anything is found."""

from collections.abc import Mapping
from typing import Any, assert_type

import numpy as np
import torch

import lossfeed as lf
from lossfeed.typing import Policy, Sampler


def right(data: lf.Data, sampler: Sampler, policy: Policy | None) -> None:
    loader = lf.Loader(data, 64, True, sampler, cache="2GiB", policy=policy, device=torch.device("cpu"))
    lf.Loader((np.zeros((8, 2)), np.zeros(8)), sampler={"name": "cost-aware", "kappa": 64}, cache=0.5, framework="numpy")
    lf.Loader(data, sampler=torch.utils.data.RandomSampler(range(8)), pad={"ids": 0, "labels": "nested"})
    lf.Loader(data, pad={"ids": "packed", "labels": lf.Packed(length=2048, long="split", keys=["cu_seqlens"])})
    lf.Loader(data, num_workers="auto", batch_sampler=[[0, 1], [2]], score="loss", on_error="skip", cache_form="decoded", copy_path="mapped")
    sampling, reading = lf.Sampling("cost-aware", score="batch_rank"), lf.Reading(8, read_ahead="1GiB", on_error="skip")
    lf.Loader(data, cache=lf.Cache("32GiB", form="decoded", policy=policy), sampling=sampling, reading=reading)
    lf.ImageTransform(torch.bfloat16, mean=(0.5, 0.5, 0.5), crop=224, augment={"name": "rand", "ops": 2})
    lf.ImageTransform(np.float32, layout="NHWC", augment="trivial")
    training, validation = lf.open("train/", mode="rgb", fields={"image": "jpg;png"}).split(0.9, seed=0)
    lf.concat([training, validation])
    for batch in loader:
        logits = torch.zeros(len(batch), 10)
        loader.cross_entropy(logits, batch, reduction="sum", sequence="max")
        loader.linear_cross_entropy(batch.data, logits, batch, linear_bias=None, reduction="none", sequence="sum")
        loader.loss("mse", logits, batch, reduction="none")
        measured: lf.SampleScores = lf.sample_scores(logits, batch.target)
        loader.score_losses(measured.loss, batch, entropies=measured.entropy)
        assert_type(batch, lf.Batch[torch.Tensor, torch.Tensor])
        assert_type(batch.data, torch.Tensor)
        assert_type(batch.target, torch.Tensor)
    # Other batches than of tensors say so: of dicts, of arrays.
    dicts: lf.Loader[dict[str, torch.Tensor]] = lf.Loader(data, transform=torch.nn.Identity())
    for named in dicts:
        assert_type(named.data["image"], torch.Tensor)
        dicts.cross_entropy(named["image"], named)
    arrays: lf.Loader[np.ndarray[Any, Any], np.ndarray[Any, Any]] = lf.Loader(data, framework="numpy", ids=[0, 1])
    for batch_of_arrays in arrays:
        print(batch_of_arrays.target.nonzero())
    stats: Mapping[str, float] = loader.stats()
    loader.load_state_dict(loader.state_dict())
    for x, _ in lf.stage([(torch.zeros(2), 1)], "cpu"):
        print(x.shape, stats["hits_total"], lf.cross_entropy(x, torch.zeros(2)).item())


def wrong(data: lf.Data, loader: lf.Loader, batch: lf.Batch, logits: torch.Tensor) -> None:
    lf.Loader(data, policy="mru")  # type: ignore[arg-type]
    lf.Loader(data, policy="nopfs")  # type: ignore[arg-type]
    lf.Loader(data, sampler="random")  # type: ignore[arg-type]
    lf.Loader(data, sampler=lf.Loader)  # type: ignore[arg-type]
    lf.Loader(data, score="accuracy")  # type: ignore[arg-type]
    lf.Sampling(score="rank")  # type: ignore[arg-type]
    lf.Cache("1GiB", policy="mru")  # type: ignore[arg-type]
    lf.Cache("1GiB", "decoded")  # type: ignore[call-arg]
    lf.Cache().size = 1  # type: ignore[misc]
    lf.Reading(on_error="ignore")  # type: ignore[arg-type]
    lf.Loader(data, sampling=lf.Cache())  # type: ignore[arg-type]
    lf.Loader(data, cache_form="raw")  # type: ignore[arg-type]
    lf.Loader(data, copy_path="direct")  # type: ignore[arg-type]
    lf.Loader(data, on_error="ignore")  # type: ignore[arg-type]
    lf.Loader(data, ranks="all")  # type: ignore[arg-type]
    lf.Loader(data, framework="jax")  # type: ignore[arg-type]
    lf.Loader(data, pad="zeros")  # type: ignore[arg-type]
    lf.Loader(data, pad={"ids": "pack"})  # type: ignore[dict-item]
    lf.Packed(64, place="first")  # type: ignore[arg-type]
    lf.Loader(data, num_workers="many")  # type: ignore[arg-type]
    lf.Loader(data, batch_size="64")  # type: ignore[arg-type]
    lf.Loader(data, worker_init_fn=3)  # type: ignore[arg-type]
    lf.Loader(data, transform="flip")  # type: ignore[arg-type]
    lf.Loader(data, suffle=True)  # type: ignore[call-arg]
    lf.open(data, batch_size=64)  # type: ignore[call-arg]
    lf.Scores(8, cache="1MB")  # type: ignore[call-arg]
    lf.ImageTransform(crp=4)  # type: ignore[call-arg]
    lf.Packed(lenght=4)  # type: ignore[call-arg]
    lf.stage([data], devise="cpu")  # type: ignore[call-arg]
    batch.data.keys()  # type: ignore[attr-defined]
    batch.target.items()  # type: ignore[attr-defined]
    dicts: lf.Loader[dict[str, torch.Tensor]] = loader  # type: ignore[assignment]
    print(dicts)
    lf.Loader(data, batchsize=64)  # type: ignore[call-arg]
    lf.Scores(data, sampler="random")  # type: ignore[arg-type]
    lf.Scores(data, score="accuracy")  # type: ignore[arg-type]
    lf.ImageTransform("float64")  # type: ignore[arg-type]
    lf.ImageTransform(layout="HWC")  # type: ignore[arg-type]
    lf.ImageTransform(augment="autoaugment")  # type: ignore[arg-type]
    lf.open("train/", mode="cmyk")  # type: ignore[arg-type]
    lf.open("train/", crop="224")  # type: ignore[arg-type]
    data.cache_bytes("raw")  # type: ignore[arg-type]
    data.split("half")  # type: ignore[arg-type]
    loader.cross_entropy(logits, batch, reduction="avg")  # type: ignore[arg-type]
    loader.cross_entropy(logits, batch, sequence="median")  # type: ignore[arg-type]
    loader.cross_entropy(logits, logits)  # type: ignore[arg-type]
    loader.loss("hinge", logits, batch)  # type: ignore[arg-type]
    loader.set_epoch("1")  # type: ignore[arg-type]
    lf.linear_cross_entropy(logits, logits, logits, reduction="avg")  # type: ignore[arg-type]
    lf.cross_entropy(logits, logits, reduction="avg")  # type: ignore[arg-type]
