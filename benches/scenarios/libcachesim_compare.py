"""Holds `lossfeed-lab replay` to libcachesim, hit for hit: sieve, s3fifo, lfu, lru, fifo, arc and belady, with equal and
with varying sizes.

    pip install libcachesim
    python benches/scenarios/libcachesim_compare.py --lab target/debug/lossfeed-lab --out record.json

    cargo bench -p lossfeed-benches --bench replay --no-run      # names the program that --rates takes
    python benches/scenarios/libcachesim_compare.py --lab … --rates target/release/deps/replay-…

Both programs get the same accesses and the same capacity in bytes. Where they count different hits, the trace is made
smaller, access by access, as long as they still do: what is left shows the difference, and stands in the record. Exit
code 1 if a difference is found where none is known; the known ones are in KNOWN, with the reason.

`--rates` also runs lossfeed's benchmark of replays and libcachesim's LRU over a run of the same shape, in turn: requests
a second of processor time, one thread each, the best of all rounds. libcachesim reads its trace on the way, from a file
in the page cache; lossfeed has read it before. libcachesim's hash table has its default size, or that of the cache,
whichever is faster.
"""

from __future__ import annotations

import argparse
import array
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import libcachesim

POLICIES = {
    "lru": libcachesim.LRU,
    "fifo": libcachesim.FIFO,
    "lfu": libcachesim.LFU,
    "sieve": libcachesim.Sieve,
    "s3fifo": libcachesim.S3FIFO,
    "arc": libcachesim.ARC,
    "belady": libcachesim.Belady,
}
SHIPPED = Path(__file__).resolve().parents[2] / "tests/golden/small.csv.gz"

#: Why counts may differ: (policy, kind of trace) → reason.
KNOWN: dict[tuple[str, str], str] = {
    ("s3fifo", "large samples"): "libcachesim never admits a sample as large as the small queue's tenth of the cache; lossfeed does",
    **{
        ("arc", kind): "the paper has samples of one size; the two programs count in bytes what it counts in samples, and differ"
        for kind in ("varying sizes", "large samples")
    },
    **{
        ("belady", kind): "libcachesim admits every sample; lossfeed lets pass what is needed later than every resident"
        for kind in ("equal sizes", "varying sizes", "large samples")
    },
}

#: libcachesim's mark of a sample that is never accessed again.
NEVER = 2**63 - 1

Accesses = list[tuple[int, int]]
"""(id, bytes) each."""


def theirs(policy: str, accesses: Accesses, capacity: int) -> int:
    cache = POLICIES[policy](capacity, hashpower=12)
    hits, following = 0, next_uses(accesses)
    for (sample, size), next_use in zip(accesses, following):
        request = libcachesim.Request(obj_size=size, obj_id=sample + 1)
        request.next_access_vtime = next_use
        hits += cache.get(request)
    return hits


def next_uses(accesses: Accesses) -> list[int]:
    """When each sample is accessed again, counted from the first access on."""
    seen: dict[int, int] = {}
    following = [NEVER] * len(accesses)
    for place in reversed(range(len(accesses))):
        following[place] = seen.get(accesses[place][0], NEVER)
        seen[accesses[place][0]] = place
    return following


def ours(program: str, policies: list[str], accesses: Accesses, capacities: list[int]) -> dict[tuple[str, int], int]:
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("epoch,step,id,loss,bytes\n")
        file.writelines(f"0,{step},{sample},1,{size}\n" for step, (sample, size) in enumerate(accesses))
        file.flush()
        sizes = ",".join(map(str, capacities))
        command = [program, "replay", "--trace", file.name, "--policy", ",".join(policies), "--capacity", sizes, "--json"]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    return {(r["policy"], r["capacity_bytes"]): r["hits"] for r in report["results"]}


def shipped() -> Accesses:
    with gzip.open(SHIPPED, "rt") as file:
        next(file)
        return [(int(line.split(",")[2]), 1) for line in file]


def drawn(rng: random.Random, samples: int, length: int, largest: int) -> Accesses:
    """Skewed accesses, so that there are hits to be counted."""
    size = [rng.randint(1, largest) for _ in range(samples)]
    return [(sample, size[sample]) for sample in (int(samples * rng.random() ** 2) for _ in range(length))]


def smallest(program: str, policy: str, accesses: Accesses, capacity: int) -> Accesses:
    """The accesses with as many left out as can be while the counts differ."""

    def differ(part: Accesses) -> bool:
        return bool(part) and ours(program, [policy], part, [capacity])[policy, capacity] != theirs(policy, part, capacity)

    step = len(accesses) // 2
    while step:
        start = 0
        while start < len(accesses):
            part = accesses[:start] + accesses[start + step :]
            if differ(part):
                accesses = part
            else:
                start += step
        step //= 2
    return accesses


def traces(seed: int, rounds: int) -> list[tuple[str, Accesses, list[int]]]:
    """(kind, accesses, capacities) each."""
    rng = random.Random(seed)
    found = [("shipped", shipped(), [20, 60, 120, 300, 450])]
    for _ in range(rounds):
        found.append(("equal sizes", drawn(rng, 200, 4000, 1), [20, 50, 120]))
        found.append(("varying sizes", drawn(rng, 200, 4000, 12), [200, 400, 700]))
        # The largest sample is above a tenth of the cache.
        found.append(("large samples", drawn(rng, 60, 2000, 40), [60, 150, 300]))
    return found


def rates(program: str, samples: int, rounds: int = 3) -> dict[str, float]:
    """Requests a second of processor time: lossfeed's LRU, and libcachesim's over a run of the same shape."""
    environment = os.environ | {"LOSSFEED_POLICY": "lru", "LOSSFEED_SAMPLES": str(samples)}
    epochs = max(2, 10_000_000 // samples)
    capacity = samples // 5
    record = {"samples": samples, "requests": samples * epochs, "lossfeed": 0.0, "libcachesim": 0.0}
    with tempfile.NamedTemporaryFile(suffix=".oracleGeneral.bin") as file:
        order = list(range(samples))
        for epoch in range(epochs):
            random.Random(epoch).shuffle(order)
            # 24 bytes a request, without gaps: time (u32), object (u64), size (u32), next request (i64).
            words = array.array("I", [0]) * (6 * samples)
            words[1::6] = array.array("I", [sample + 1 for sample in order])
            words[3::6] = array.array("I", [1]) * samples
            words[4::6] = words[5::6] = array.array("I", [2**32 - 1]) * samples
            words.tofile(file)
        file.flush()
        for _ in range(rounds):
            run = subprocess.run([program], env=environment, check=True, capture_output=True, text=True, timeout=600)
            measured = json.loads(run.stdout.splitlines()[-1])
            record["lossfeed"] = max(record["lossfeed"], measured["requests_per_cpu_s"])
            record["hit_ratio_lossfeed"] = measured["hits"] / measured["requests"]
            for table in ({}, {"hashpower": capacity.bit_length() + 1}):
                cache = libcachesim.LRU(capacity, **table)
                reader = libcachesim.TraceReader(file.name, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
                started = time.process_time()
                miss_ratio, _ = cache.process_trace(reader)
                took = time.process_time() - started
                record["libcachesim"] = max(record["libcachesim"], round(samples * epochs / took))
                record["hit_ratio_libcachesim"] = 1 - miss_ratio
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="lossfeed-lab", help="the program to hold to it")
    parser.add_argument("--rounds", type=int, default=10, help="random traces of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rates", metavar="PROGRAM", help="lossfeed's benchmark of replays: compare rates too")
    parser.add_argument("--out", type=Path, help="where to write the record")
    args = parser.parse_args()
    counted: dict[tuple[str, str], dict[str, int]] = {}
    differences, unknown = [], 0
    for kind, accesses, capacities in traces(args.seed, args.rounds):
        mine = ours(args.lab, list(POLICIES), accesses, capacities)
        for policy in POLICIES:
            row = counted.setdefault((policy, kind), {"compared": 0, "equal": 0, "hits": 0, "hits_libcachesim": 0})
            for capacity in capacities:
                hits = theirs(policy, accesses, capacity)
                row["compared"] += 1
                row["equal"] += hits == mine[policy, capacity]
                row["hits"] += mine[policy, capacity]
                row["hits_libcachesim"] += hits
                if hits == mine[policy, capacity]:
                    continue
                # A bound that lets samples pass never hits less than one that must admit them.
                below = policy == "belady" and mine[policy, capacity] < hits
                unknown += (policy, kind) not in KNOWN or below
                if not any(d["policy"] == policy and d["kind"] == kind for d in differences):
                    least = smallest(args.lab, policy, accesses, capacity)
                    differences.append(
                        {
                            "policy": policy,
                            "kind": kind,
                            "capacity": capacity,
                            "accesses_id_bytes": least,
                            "hits": ours(args.lab, [policy], least, [capacity])[policy, capacity],
                            "hits_libcachesim": theirs(policy, least, capacity),
                            "reason": KNOWN.get((policy, kind)),
                        }
                    )
    record = {
        "scenario": "libcachesim_compare",
        "libcachesim": version("libcachesim"),
        "seed": args.seed,
        "rounds": args.rounds,
        "counts": [{"policy": policy, "kind": kind, **row} for (policy, kind), row in counted.items()],
        "differences": differences,
    }
    if args.rates:
        record["lru_requests_per_cpu_s"] = [rates(args.rates, samples) for samples in (50_000, 1_281_167)]
    text = json.dumps(record, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
