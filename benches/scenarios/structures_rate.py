"""Samples that are no pairs, beside torch's DataLoader: dicts of arrays, and sequences of any length.

    python benches/scenarios/structures_rate.py [--samples 20000] [--rounds 5]

A Python dataset in memory, whose items cost a microsecond or two: what is measured is the loaders. Batches of 256,
shuffled; every batch is summed. In turn, each in a process of its own:

    dict      two arrays of 64 numbers and a label
    sequence  4 to 63 tokens and a label, padded: by pad_sequence in torch's collate_fn, by pad=0 here

    torch 0, torch 2    DataLoader with so many worker processes
    ours                items read as they come, by default threads
    ours, cached        the same from the second epoch on (sequences: from the third), all of it in the cache
    ours, arrays        a dict of arrays, where they lie (dicts alone)

Samples a second by the clock, medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from record import Record

BATCH = 256
WAYS = {
    "dict": ("torch 0", "torch 2", "ours", "ours, cached", "ours, arrays"),
    "sequence": ("torch 0", "torch 2", "ours", "ours, cached"),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def loader_of(kind: str, way: str, samples: int) -> tuple[Any, int]:
    """The loader, and the epochs that are not measured."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader

    import lossfeed as lf

    x, mask = torch.randint(0, 255, (samples, 64)), torch.ones(samples, 64, dtype=torch.int64)

    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, i: int) -> dict[str, Any]:
            if kind == "sequence":
                return {"tokens": x[0, : 4 + i % 60], "label": i % 10}
            return {"tokens": x[i], "mask": mask[i], "label": i % 10}

    def padded(items: list[dict[str, Any]]) -> dict[str, Any]:
        tokens = pad_sequence([item["tokens"] for item in items], batch_first=True)
        return {"tokens": tokens, "label": torch.tensor([item["label"] for item in items])}

    if way.startswith("torch"):
        workers = int(way.split()[1])
        collate = padded if kind == "sequence" else None
        keywords = {"num_workers": workers, "persistent_workers": workers > 0, "collate_fn": collate}
        return DataLoader(Items(), BATCH, shuffle=True, **keywords), 1
    keywords = {"shuffle": True, "seed": 0, "stats": False, **({"pad": 0} if kind == "sequence" else {})}
    if way == "ours, arrays":
        return lf.Loader({"tokens": x, "mask": mask, "label": torch.arange(samples) % 10}, BATCH, **keywords), 1
    data = lf.open(Items(), varying=kind == "sequence")
    return lf.Loader(data, BATCH, **keywords, **({"cache": "1GiB"} if way == "ours, cached" else {})), 2


def one(kind: str, way: str, samples: int) -> None:
    """One way in this process: samples a second, as JSON."""
    import torch

    torch.manual_seed(0)
    loader, before = loader_of(kind, way, samples)
    rates = []
    for epoch in range(before + 3):
        started, count = time.perf_counter(), 0
        for batch in loader:
            count += len(batch["label"])
            batch["tokens"].sum()
        if epoch >= before:
            rates.append(count / (time.perf_counter() - started))
    print(json.dumps(max(rates)))


def main() -> int:
    args = arguments()
    if args.way is not None:
        one(*args.way, args.samples)
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("structures-rate", {"rounds": args.rounds, "samples": args.samples, "batch": BATCH}, args.date, **where)
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.rounds):
        for kind, ways in WAYS.items():
            for way in ways:
                command = [sys.executable, __file__, "--samples", str(args.samples), "--way", kind, way]
                said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
                found.setdefault((kind, way), []).append(json.loads(said))
    for (kind, way), rates in found.items():
        run = {"kind": kind, "way": way, "samples_per_s": round(statistics.median(rates))}
        record.add({**run, "least": round(min(rates)), "most": round(max(rates))})
        print(f"{kind:<9} {way:<13} {run['samples_per_s']:>10,} samples/s  ({min(rates):,.0f} to {max(rates):,.0f})")
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
