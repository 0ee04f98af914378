"""Gavel's cluster traces under three schedulers and six cache systems, by ``lossfeed-lab jobs``: the record, with the
time that it took and every system beside LRU.

    cargo build --release -p lossfeed-lab
    python benches/scenarios/cluster_traces.py FOLDER --lab target/release/lossfeed-lab

FOLDER has ``simulation_throughputs.json`` of stanford-futuredata/gavel, and traces (``*.trace``) in it or below. They are
not part of this project: without them this says so and ends well. No trace says what its jobs read; it is drawn by seed,
so several are run. Each seed is timed by itself: its runs are to take 120 s at most.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

from record import Record

THROUGHPUTS = "simulation_throughputs.json"
WITHIN_S = 120.0
"""What all runs of one seed may take."""


def simulated(program: str, folder: Path, traces: list[Path], seed: int) -> tuple[dict[str, Any], dict[str, float]]:
    """The program's report, and seconds that it took; ``load`` is what wanted a processor in the minute before."""
    names = ",".join(map(str, traces))
    command = [program, "jobs", "--trace", names, "--throughputs", str(folder / THROUGHPUTS), "--seed", str(seed), "--json"]
    command += ["--cache", "lru,static,quiver,silod,silod-in-order,ours"]
    load, before, started = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(run.stdout), {"took_s": round(wall, 1), "took_cpu_s": round(cpu, 1), "load": round(load, 1)}


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Over all traces: one row for each scheduler and system."""
    grouped = collections.defaultdict(list)
    for run in report["runs"]:
        grouped[run["order"], run["cache"]].append(run)
    found = []
    for (order, cache), runs in grouped.items():
        jobs = sum(run["jobs"] for run in runs)
        read, fetched = (sum(run[key] for run in runs) for key in ("read_bytes", "fetched_bytes"))
        found.append(
            {
                "order": order,
                "cache": cache,
                "traces": len(runs),
                "jobs": jobs,
                "completion_h": sum(run["mean_completion_s"] * run["jobs"] for run in runs) / jobs / 3600,
                "makespan_h": sum(run["makespan_s"] for run in runs) / len(runs) / 3600,
                "fetched_tb": fetched / 1e12,
                "hit_ratio": 1 - fetched / read,
                "fairness": sum(run["fairness"] for run in runs) / len(runs),
            }
        )
    lru = {row["order"]: row for row in found if row["cache"] == "lru"}
    for row in found:
        base = lru[row["order"]]
        for key in ("completion_h", "makespan_h", "fetched_tb"):
            row[f"{key.rsplit('_', 1)[0]}_over_lru"] = row[key] / base[key]
    return [{key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help=f"the folder with {THROUGHPUTS} and the traces in or below it")
    parser.add_argument("--lab", default="lossfeed-lab", help="the program")
    parser.add_argument("--seeds", default="0,1,2", help="what jobs read is drawn by each of them")
    parser.add_argument("--date", help="the record's date, if it is not today's")
    args = parser.parse_args()
    traces = sorted(args.folder.rglob("*.trace"))
    if not traces or not (args.folder / THROUGHPUTS).is_file():
        print(f"skipped: {args.folder} has {len(traces)} traces and needs {THROUGHPUTS}")
        return
    record = None
    for seed in map(int, args.seeds.split(",")):
        report, took = simulated(args.lab, args.folder, traces, seed)
        if record is None:
            settings = {key: report[key] for key in ("gpus", "cache_bytes", "bandwidth_bytes_per_s", "scored", "assumed")}
            settings |= {"traces": [str(trace.relative_to(args.folder)) for trace in traces], "within_s": WITHIN_S}
            record = Record("cluster-traces", settings, args.date)
        for row in rows(report):
            record.add({"seed": seed, **row, **took})
            told = f"{row['completion_h']:6.1f} h {row['completion_over_lru']:.3f} of LRU's, fair {row['fairness']:.3f}"
            print(f"{seed} {row['order']:8} {row['cache']:14} {told}")
        print(f"{len(report['runs'])} runs in {took['took_s']} s, {took['took_cpu_s']} s of processors, load {took['load']} before")
        if took["took_s"] > WITHIN_S:
            print(f"that is above the {WITHIN_S:.0f} s that they are to take")


if __name__ == "__main__":
    main()
