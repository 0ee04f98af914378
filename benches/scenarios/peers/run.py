"""lossfeed beside other loaders, on one machine, in one run.

    python benches/scenarios/peers/run.py DATA [--python PEER=INTERPRETER ...] [--groups cold,warm,rows] [--only
    PEER,PEER]

DATA is a folder of class folders with CIFAR-10's JPEGs (or of train-*.tar holding them). README.md in this folder says
how the peers are installed, what is compared and what the columns mean. Every measurement is a fresh process; the
rounds go through the list forwards and backwards in turn. A peer that fails is a row with its error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# record.py lies one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loaders import BATCH, PEERS, Peer
from record import Record

HERE = Path(__file__).resolve().parent
TITLES = {
    "cold": "Cold: JPEGs of 32 x 32 pixels, decoded every epoch",
    "warm": "Warm: the same pictures decoded in memory",
    "rows": "Rows of 150,528 bytes (224 x 224 x 3) in memory",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, help="folder of the peers' formats, kept between runs (default: under the temporary folder)")
    parser.add_argument("--groups", default="cold,warm,rows")
    parser.add_argument("--only", default="", help="peers, or beginnings of their names: lossfeed,torch")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=INTERPRETER",
        help="for a peer (or the beginning of its name) with its own venv",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="least time measured a process; whole epochs")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rows-gib", type=float, default=2.0, help="size of the large rows; loaders may hold it twice")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds one process may take")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def named(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(pattern + "-")


def call(command: list[str], timeout: float) -> tuple[str, str]:
    """(last line of its output, "") or ("", why it failed)."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "", f"no result within {timeout:g} s"
    if process.returncode == 0:
        return (out.strip().splitlines() or [""])[-1], ""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return "", f"{lines[-1][:240] if lines else 'no message'} (exit {process.returncode})"


class Row:
    """One loader with one number of workers: what its rounds gave."""

    def __init__(self, group: str, peer: Peer, workers: int, python: str) -> None:
        self.group, self.peer, self.workers, self.python = group, peer, workers, python
        self.rounds: list[dict[str, Any]] = []
        self.error = ""

    def measure(self, args: argparse.Namespace) -> None:
        command = [self.python, str(HERE / "measure.py"), self.group, self.peer.name, str(self.workers), str(args.work)]
        found, self.error = call([*command, "--seconds", str(args.seconds), "--rows-gib", str(args.rows_gib)], args.timeout)
        if not self.error:
            self.rounds.append(json.loads(found))

    def values(self, above: str, below: str) -> list[float]:
        return [r[above] / r[below] for r in self.rounds]

    def median(self, above: str, below: str) -> float:
        return statistics.median(self.values(above, below))

    def result(self, bounds: dict[tuple[str, str, int], float]) -> dict[str, Any]:
        head = {"group": self.group, "peer": self.peer.name, "workers": self.workers}
        if self.error or not self.rounds:
            return {**head, "error": self.error or "not measured"}
        wall, cpu = self.values("samples", "wall_s"), self.values("samples", "cpu_s")
        rate = self.median("samples", "wall_s")
        row = {
            **head,
            "samples_per_s": round(rate),
            "samples_per_s_min": round(min(wall)),
            "samples_per_s_max": round(max(wall)),
            "samples_per_cpu_s": round(statistics.median(cpu)),
            "samples_per_cpu_s_min": round(min(cpu)),
            "samples_per_cpu_s_max": round(max(cpu)),
            "bytes_per_s": round(self.median("bytes", "wall_s")),
        }
        for bound in ("gather", "memcpy"):
            # On a busy machine two threads wait for each other and the bound of one is the higher.
            reached = [
                found
                for (group, name, threads), found in bounds.items()
                if threads <= max(1, self.workers) and (group, name) == (self.group, f"bound-{bound}")
            ]
            limit = max(reached, default=None)
            row[f"of_{bound}"] = None if limit is None else round(rate / limit, 3)
        last = self.rounds[-1]
        others = max(r["others_cores"] for r in self.rounds)
        return {**row, "others_cores_max": round(others, 2), "rounds": len(self.rounds), "versions": last["versions"], "error": ""}


def prepare(rows: list[Row], args: argparse.Namespace) -> None:
    """Every form once, by the interpreter of the first peer that reads it; peers without their form have failed."""
    failed: dict[str, str] = {}
    for name, row in {"files": rows[0], "arrays": rows[0], **{("rows" if r.group == "rows" else r.peer.form): r for r in rows}}.items():
        python = sys.executable if name in ("files", "arrays", "rows", "tar") else row.python
        print(f"prepare {name}", flush=True)
        command = [python, str(HERE / "formats.py"), name, str(args.data.resolve()), str(args.work)]
        _, error = call([*command, "--rows-gib", str(args.rows_gib)], max(args.timeout, 1800.0))
        if error:
            failed[name] = error
            print(f"  {error}", flush=True)
    for row in rows:
        row.error = failed.get("rows" if row.group == "rows" else row.peer.form, "")


def table(group: str, results: list[dict[str, Any]]) -> str:
    """Markdown, fastest first; what failed stands below."""
    lines = [f"### {TITLES[group]}", ""]
    lines += ["| loader | workers | samples/s (min - max) | samples per CPU-s (min - max) | GB/s | of gather | of memcpy | others |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    mine = [r for r in results if r["group"] == group]
    for r in sorted((r for r in mine if not r["error"]), key=lambda r: -r["samples_per_s"]):
        shares = ["" if r[k] is None else f"{r[k]:.2f}" for k in ("of_gather", "of_memcpy")]
        lines.append(
            f"| {r['peer']} | {r['workers']} | {r['samples_per_s']:,} ({r['samples_per_s_min']:,} - {r['samples_per_s_max']:,}) "
            f"| {r['samples_per_cpu_s']:,} ({r['samples_per_cpu_s_min']:,} - {r['samples_per_cpu_s_max']:,}) "
            f"| {r['bytes_per_s'] / 1e9:.2f} | {shares[0]} | {shares[1]} | {r['others_cores_max']:.2f} |"
        )
    lines += [f"| {r['peer']} | {r['workers']} | failed: {r['error'].replace('|', '/')} | | | | | |" for r in mine if r["error"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    args = arguments()
    # Children inherit it: threads and processes of every peer share these cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    key = hashlib.sha256(str(args.data.resolve()).encode()).hexdigest()[:12]
    args.work = (args.work or Path(tempfile.gettempdir()) / f"lossfeed-peers-{key}").resolve()
    groups, only = args.groups.split(","), [p for p in args.only.split(",") if p]
    pythons = dict(text.split("=", 1) for text in args.python)
    rows = []
    for group in groups:
        for peer in PEERS.values():
            if group in peer.groups and (not only or peer.name.startswith("bound") or any(named(peer.name, p) for p in only)):
                python = next((path for name, path in pythons.items() if named(peer.name, name)), sys.executable)
                rows += [Row(group, peer, workers, python) for workers in peer.workers if workers <= args.cores]
    if not rows:
        raise SystemExit("nothing to measure: see --groups and --only")
    settings = {k: getattr(args, k) for k in ("groups", "only", "seconds", "cores", "rows_gib")} | {"batch_size": BATCH}
    where = {} if args.record is None else {"root": args.record}
    record = Record("loader-peers", settings, args.date, **where)
    prepare(rows, args)
    for number in range(args.rounds):
        for row in rows if number % 2 == 0 else rows[::-1]:
            # What failed once is not waited for again.
            if not row.error:
                row.measure(args)
                said = row.error or f"{row.rounds[-1]['samples'] / row.rounds[-1]['wall_s']:,.0f} samples/s"
                print(f"round {number + 1} {row.group} {row.peer.name} {row.workers}: {said}", flush=True)
    bounds = {
        (r.group, r.peer.name, r.workers): r.median("samples", "wall_s") for r in rows if r.peer.name.startswith("bound") and r.rounds
    }
    results = [row.result(bounds) for row in rows]
    for result in results:
        record.add(result)
    text = "\n".join(table(group, results) for group in groups)
    (record.folder / f"{record.stem}.md").write_text(text)
    print(f"\n{text}\n{record.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
