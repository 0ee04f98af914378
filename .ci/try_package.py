"""Tries an installed package, with NumPy alone: epochs with scores, measured logits, the command line. Where
PyTorch is installed, a training step too."""

import importlib.util
import runpy
import sys

import numpy as np

import lossfeed as lf

rows = np.arange(256, dtype="float32").reshape(64, 4)
loader = lf.Loader((rows, np.arange(64) % 4), 8, sampler="importance", cache="50%", seed=0, num_workers=2)
seen = set()
for epoch in range(2):
    loader.set_epoch(epoch)
    for batch in loader:
        assert (np.asarray(batch.data) == rows[np.asarray(batch.ids)]).all()
        loader.score_losses(np.asarray(batch.data).mean(axis=1) * np.asarray(batch.weight), batch)
        if epoch == 0:
            seen.update(np.asarray(batch.ids).tolist())
assert seen == set(range(64)), seen
assert loader.stats()["scores_total"] == 128
measured = lf.sample_scores(np.zeros((3, 4), "float32"), np.zeros(3, "int64"))
assert np.allclose(measured.loss, np.log(4))
print(f"lossfeed {lf.__version__} on Python {sys.version.split()[0]}: 16 batches, {loader.stats()['hits_total']:.0f} hits")
if importlib.util.find_spec("torch"):
    import torch

    model = torch.nn.Linear(4, 4)
    tensors = torch.from_numpy(rows), torch.arange(64) % 4
    with lf.Loader(tensors, 8, sampler="importance", cache="50%", seed=0) as loader:
        for batch in loader:
            loader.cross_entropy(model(batch.data), batch).backward()
        assert loader.stats()["scores_total"] == 64 and model.weight.grad is not None
    print(f"and a step with PyTorch {torch.__version__}")
sys.argv = ["lossfeed", "--version"]
runpy.run_module("lossfeed", run_name="__main__")
