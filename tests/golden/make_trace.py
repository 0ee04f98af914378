#!/usr/bin/env python3
"""Makes small.csv.gz and small.expected.json: a short trace of the kind a uniform run leaves, and the hits an
independent, deliberately naive program counts on it. Run it only to change the trace: `python3
tests/golden/make_trace.py`.

Rules: a batch's accesses come first, in row order, then its scores are applied. Capacity = floor(fraction * samples).
Everything below is lists, sets and `min`: nothing is shared with the engine but the rules.
"""

import gzip
import json
import math
import pathlib
import random

HERE = pathlib.Path(__file__).parent
SAMPLES, BATCH, EPOCHS = 600, 32, 7
FRACTIONS = ["0.1", "0.2", "0.5", "0.75"]


def make_rows():
    rng = random.Random(7)
    difficulty = [math.exp(rng.gauss(0, 1)) for _ in range(SAMPLES)]
    rows = []
    for epoch in range(EPOCHS):
        order = list(range(SAMPLES))
        rng.shuffle(order)
        for k, i in enumerate(order):
            loss = difficulty[i] * math.exp(0.5 * rng.gauss(0, 1) - epoch / 5)
            # Two digits: real float32 losses tie too, and ties are where policies part.
            rows.append((epoch, k // BATCH, i, f"{loss:.2f}"))
    return rows


def batches(rows):
    out = []
    for epoch, step, i, loss in rows:
        if not out or out[-1][0] != (epoch, step):
            out.append(((epoch, step), []))
        out[-1][1].append((i, float(loss)))
    return [b for _, b in out]


def recency(ids, capacity, refresh):
    queue, hits = [], 0
    for i in ids:
        if i in queue:
            hits += 1
            if refresh:
                queue.remove(i)
                queue.append(i)
        elif capacity:
            if len(queue) == capacity:
                queue.pop(0)
            queue.append(i)
    return hits


def minio(ids, capacity):
    kept, hits = set(), 0
    for i in ids:
        if i in kept:
            hits += 1
        elif len(kept) < capacity:
            kept.add(i)
    return hits


def belady(ids, capacity):
    def next_use(i, after):
        return next((p for p in range(after + 1, len(ids)) if ids[p] == i), math.inf)

    kept, hits = {}, 0
    for p, i in enumerate(ids):
        following = next_use(i, p)
        if i in kept:
            hits += 1
            kept[i] = following
        elif following < math.inf and capacity:
            if len(kept) < capacity:
                kept[i] = following
            else:
                farthest = max(kept, key=lambda r: kept[r])
                if following < kept[farthest]:
                    del kept[farthest]
                    kept[i] = following
    return hits


def app(rows, capacity):
    kept, ghost, hits = {}, {}, 0
    for batch in batches(rows):
        for i, _ in batch:
            if i in kept:
                hits += 1
            elif len(kept) < capacity:
                kept[i] = ghost.get(i, 0.0)
            elif i in ghost and kept:
                score, least = min((s, r) for r, s in kept.items())
                if ghost[i] >= score:
                    del kept[least]
                    kept[i] = ghost[i]
        for i, loss in batch:
            ghost[i] = math.log(sum(other < loss for _, other in batch) + 10)
            if i in kept:
                kept[i] = ghost[i]
    return hits


def main():
    rows = make_rows()
    ids = [i for _, _, i, _ in rows]
    text = "epoch,step,id,loss\n" + "".join(f"{e},{s},{i},{loss}\n" for e, s, i, loss in rows)
    with open(HERE / "small.csv.gz", "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(text.encode())
    expected = {"requests": len(rows), "samples": SAMPLES}
    for fraction in FRACTIONS:
        capacity = math.floor(float(fraction) * SAMPLES)
        expected[fraction] = {
            "lru": recency(ids, capacity, True),
            "fifo": recency(ids, capacity, False),
            "minio": minio(ids, capacity),
            "belady": belady(ids, capacity),
            "app": app(rows, capacity),
        }
    (HERE / "small.expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
