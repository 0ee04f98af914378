"""One life of a training that is killed: run as a program, it goes on from what it finds in a folder.

All ranks are loaders of this process and take their steps together. How many they are is drawn anew in every life.
Saved are rank 0's state, or those of all, and what was delivered up to then: together, whole or not at all.
"""

import json
import os
import pickle
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np

import lossfeed as lf

EPOCHS = 3


def saved(place):
    """(states, what was delivered), or nothing."""
    try:
        return pickle.loads((place / "state").read_bytes())
    except FileNotFoundError:
        return None, []


def save(place, states, log):
    (place / "state.new").write_bytes(pickle.dumps((states, log)))
    os.replace(place / "state.new", place / "state")


def made(place, ranks, batch_size):
    """The loaders of so many ranks, over one dataset with a disk tier."""
    data = lf.open(place / "data", latency=0.0002, disk=place / "tier", disk_bytes="64MiB")
    usual = {"shuffle": True, "seed": 5, "num_workers": 1, "cache": "30%", "framework": "numpy", "stats": False}
    keeping = {"score_file": place / "scores-{rank}", "score_file_every": 0.01}
    return [lf.Loader(data, batch_size, rank=r, world_size=ranks, **usual, **keeping) for r in range(ranks)]


def live(place, ranks, every, all_states):
    """Trains to the end, if nobody kills it."""
    # A file that a kill has torn would be told by a warning.
    warnings.simplefilter("error", lf.ResumeWarning)
    states, log = saved(place)
    loaders = made(place, ranks, 12 // ranks)
    if (place / "scores-0").exists():
        assert np.isfinite(loaders[0].importance()).any(), "it begins with what was learned before"
    if states is not None:
        # Fewer samples than ranks may be left of an epoch.
        warnings.filterwarnings("ignore", "[0-9]+ samples are left of epoch", lf.ResumeWarning)
        for loader in loaders:
            loader.load_state_dict(states)
    steps = 0
    while loaders[0].epoch < EPOCHS:
        passes = [iter(loader) for loader in loaders]
        for batches in zip(*passes, strict=True):
            for loader, batch in zip(loaders, batches, strict=True):
                sums = [zlib.crc32(row.tobytes()) for row in batch.data]
                log.append((batch.epoch, ranks, batch.ids.tolist(), sums))
                loader.score_losses((1.0 + batch.ids % 5).astype(np.float32), batch)
            steps += 1
            if steps == 1:
                print("b", end="", flush=True)
            if steps % every == 0:
                each = [loader.state_dict() for loader in loaders]
                save(place, {"ranks": each} if all_states else each[0], log)
    save(place, loaders[0].state_dict(), log)
    for loader in loaders:
        loader.close()
    print("e", end="", flush=True)


if __name__ == "__main__":
    live(Path(sys.argv[1]), *json.loads(sys.argv[2]))
