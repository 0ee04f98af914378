"""Worker processes over a Python dataset, beside torch's DataLoader with the same settings.

    python benches/scenarios/workers_rate.py [--rounds 5] [--epochs 3]

Batches of 32, shuffled, default_collate. In turn, each in a process of its own:

    waits      items of 3 x 32 x 32 floats that wait for 10 ms, as a read from a network file system
    computes   items of 3 x 96 x 96 floats that cost about 2 ms of arithmetic in torch and Python
    pictures   JPEGs of 256 x 192 that Pillow decodes, crops and mirrors at random
    memory     tensors in memory (TensorDataset), without workers

Samples a second by the clock over all epochs but the first, the start of workers in it; the median of the ratios of
neighbouring pairs is the answer. Beside it the seconds to the first batch, and the memory of all processes (PSS).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from record import Record

BATCH = 32
WORK = {"waits": (2, 4, 8), "computes": (2, 4, 8), "pictures": (2, 4, 8), "memory": (0,)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def dataset_of(work: str) -> Any:
    import numpy as np
    import torch
    from PIL import Image

    if work == "memory":
        x = torch.rand(50_000, 3, 32, 32)
        return torch.utils.data.TensorDataset(x, torch.arange(len(x)) % 10)
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (192, 256, 3), np.uint8)).save(out, "jpeg")

    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return {"waits": 1024, "computes": 1024, "pictures": 2048}[work]

        def __getitem__(self, i: int) -> tuple[Any, int]:
            if work == "waits":
                time.sleep(0.01)
                return torch.rand(3, 32, 32), i % 10
            if work == "pictures":
                image = Image.open(out).convert("RGB")
                left, top = (int(torch.randint(32, ())) for _ in range(2))
                pixels = torch.from_numpy(np.asarray(image.crop((left, top, left + 160, top + 160))))
                pixels = pixels.permute(2, 0, 1).float() / 255
                return (pixels.flip(2) if torch.rand(()) < 0.5 else pixels), i % 10
            x = torch.rand(3, 96, 96)
            for _ in range(60):
                x = (x * 1.0001).clamp(0, 1)
            return x, sum(range(20_000)) * 0 + i % 10

    return Items()


def memory_mib() -> float:
    """Of this process and its children, what is shared divided among those that share it."""
    mine = os.getpid()
    children = Path(f"/proc/{mine}/task/{mine}/children").read_text().split()
    total = 0
    for pid in [mine, *children]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def one(work: str, workers: int, whose: str, epochs: int) -> None:
    """One loader in this process, as JSON: samples a second, seconds to the first batch, MiB."""
    import torch

    if whose == "torch":
        from torch.utils.data import DataLoader as Loader
    else:
        from lossfeed import Loader  # type: ignore[assignment]
    data = dataset_of(work)
    torch.manual_seed(0)
    loader: Any = Loader(data, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    begun, first, memory, rates = time.perf_counter(), 0.0, 0.0, []
    for epoch in range(epochs):
        started, count = time.perf_counter(), 0
        for x, _ in loader:
            count += len(x)
            first = first or time.perf_counter() - begun
            if epoch == 0 and count == 10 * BATCH:
                memory = memory_mib()
        if epoch:
            rates.append(count / (time.perf_counter() - started))
    print(json.dumps([statistics.median(rates), first, memory]))


def main() -> int:
    args = arguments()
    if args.one is not None:
        work, workers, whose, epochs = args.one
        one(work, int(workers), whose, int(epochs))
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("workers-rate", {"rounds": args.rounds, "epochs": args.epochs, "batch": BATCH}, args.date, **where)
    print(f"{'':<10} workers   torch's       ours   ratio   first batch, s   MiB")
    for work, counts in WORK.items():
        for workers in counts:
            found: dict[str, list[list[float]]] = {"torch": [], "ours": []}
            for _ in range(args.rounds):
                for whose, runs in found.items():
                    command = [sys.executable, __file__, "--one", work, str(workers), whose, str(args.epochs)]
                    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
                    runs.append(json.loads(said))
            ratio = statistics.median(o[0] / t[0] for t, o in zip(found["torch"], found["ours"], strict=True))
            t, o = ([statistics.median(column) for column in zip(*runs, strict=True)] for runs in found.values())
            run = {"work": work, "workers": workers, "torch_per_s": round(t[0], 1), "ours_per_s": round(o[0], 1), "ratio": round(ratio, 3)}
            run |= {"torch_first_s": round(t[1], 3), "ours_first_s": round(o[1], 3), "torch_mib": round(t[2]), "ours_mib": round(o[2])}
            record.add(run)
            print(
                f"{work:<10} {workers:>7} {t[0]:>9,.0f} {o[0]:>10,.0f} {ratio:>7.3f} {t[1]:>9.2f} {o[1]:>6.2f} {t[2]:>6,.0f} {o[2]:>6,.0f}",
                flush=True,
            )
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
