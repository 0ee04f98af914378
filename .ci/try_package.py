"""Tries an installed package, with NumPy alone: epochs with scores, measured logits, the command line. Where
PyTorch is installed, a training step too, and the verdict of `lossfeed why` on an unchanged script."""

import importlib.util
import json
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import lossfeed as lf

#: A torch script that waits for its pictures.
SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __len__(self):
        return 1024
    def __getitem__(self, i):
        time.sleep(0.004)  # a file system far away
        return torch.full((3, 32, 32), i / 1024), i % 3

model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(Pictures(), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

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
    with tempfile.TemporaryDirectory() as folder:
        script, report, begun = Path(folder) / "train.py", Path(folder) / "why.json", time.perf_counter()
        script.write_text(SCRIPT)
        why = [sys.executable, "-m", "lossfeed", "why", "--json", report, "--", sys.executable, script]
        subprocess.run(why, check=True, stderr=subprocess.DEVNULL, timeout=300)
        verdict = json.loads(report.read_text())["verdict"]
    assert verdict == "input-bound", verdict
    print(f"and why an unchanged script waits: {verdict}, after {time.perf_counter() - begun:.0f} s")
sys.argv = ["lossfeed", "--version"]
runpy.run_module("lossfeed", run_name="__main__")
