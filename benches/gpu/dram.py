"""Bytes that loss and gradient move in the GPU's memory, as ncu counts them, against the logits' own bytes.

For each shape a process of its own under ncu runs one forward and one backward of ``lf.cross_entropy``, and ncu reports
every kernel of ours: bytes read and written, time, and what it waited for. Caches are flushed before each kernel, so
nothing is found there. Asked for: forward and backward together at most 3.1 times the logits (two reads and a write, and
what is kept of every row). What ncu prints is kept beside the JSON. ``--device cpu --quick`` tries the program itself,
without ncu.
"""

from __future__ import annotations

import contextlib
import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import Report, arguments

#: (rows, classes, type): large enough that what is kept of every row is a small share.
SHAPES = ((4096, 32000, "bfloat16"), (8192, 151936, "bfloat16"), (16384, 8192, "bfloat16"), (4096, 32000, "float32"))
METRICS = {
    "dram__bytes_read.sum": "read_bytes",
    "dram__bytes_write.sum": "written_bytes",
    "gpu__time_duration.sum": "ns",
    "smsp__inst_executed.sum": "warp_instructions",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_active_percent",
    "smsp__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": "special_functions_percent",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "warps_waiting_for_memory",
    "lts__t_sector_hit_rate.pct": "l2_hit_percent",
}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "nsecond": 1, "usecond": 1e3, "msecond": 1e6, "ns": 1, "us": 1e3, "ms": 1e6, "inst": 1, "warp": 1, "%": 1, "": 1}
LIMIT_S = 60


def work(device: str, rows: int, classes: int, dtype: str) -> None:
    """What the process under ncu does."""
    import torch
    from common import logits, targets

    import lossfeed as lf

    z = logits(rows, classes, getattr(torch, dtype), torch.device(device)).requires_grad_()
    lf.cross_entropy(z, targets(rows, classes, torch.device(device))).backward()
    if device != "cpu":
        torch.cuda.synchronize()


def kernels(said: str) -> list[dict[str, Any]]:
    """ncu's CSV (a line for each kernel and metric) as one entry a kernel, in the order of launches."""
    lines = said.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(f"ncu printed no table: {said.strip()[-300:]}")
    found: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(lines[start:]):
        metric = METRICS.get(row["Metric Name"])
        if metric is None:
            continue
        unit = row["Metric Unit"]
        if unit not in UNITS:
            raise ValueError(f"ncu gives {row['Metric Name']} in {unit!r}, which is not known here")
        entry = found.setdefault(row["ID"], {"kernel": row["Kernel Name"].split("(")[0]})
        with contextlib.suppress(ValueError):  # n/a
            entry[metric] = float(row["Metric Value"].replace(",", "")) * UNITS[unit]
    return list(found.values())


def measured(report: Report, ncu: str | None, rows: int, classes: int, dtype: str) -> dict[str, Any]:
    """One shape."""
    child = [sys.executable, str(Path(__file__).resolve()), "--device", str(report.device), "--work", f"{rows}x{classes}x{dtype}"]
    logits_bytes = rows * classes * (4 if dtype == "float32" else 2)
    # A metric that this ncu does not know is an error of the whole: then the few that matter.
    for metrics in (list(METRICS), list(METRICS)[:3]):
        under = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--kernel-name", "regex:lossfeed_", "--metrics", ",".join(metrics)] if ncu else []
        done = subprocess.run([*under, *child], capture_output=True, text=True, timeout=min(LIMIT_S, report.left()), check=False)
        report.path.with_name(f"ncu-{rows}x{classes}-{dtype}-{len(metrics)}.txt").write_text(done.stdout + done.stderr)
        if done.returncode == 0:
            break
    else:
        raise RuntimeError(f"ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-400:]}")
    found = kernels(done.stdout) if ncu else []
    moved = sum(k["read_bytes"] + k["written_bytes"] for k in found) / logits_bytes if found else None
    report.figure(f"bytes of loss and gradient {rows}x{classes} {dtype}", moved, "of the logits'", most=3.1, n=1, predicted=3.01)
    for k in found:
        for metric in ("issue_active_percent", "special_functions_percent", "warps_waiting_for_memory", "l2_hit_percent"):
            report.figure(f"{k['kernel']} {rows}x{classes}, {metric}", k.get(metric), n=1)
    return {"logits_bytes": logits_bytes, "kernels": found, "bytes_per_logits_byte": moved}


def main() -> int:
    """Runs every shape; always 0, unless the program itself cannot start."""
    parser = arguments(__doc__)
    parser.add_argument("--ncu", help="the profiler; without it nothing is counted")
    parser.add_argument("--work", metavar="ROWSxCLASSESxTYPE", help="only run this shape, for the process under ncu")
    options = parser.parse_args()
    if options.work:
        rows, classes, dtype = options.work.split("x")
        work(options.device, int(rows), int(classes), dtype)
        return 0
    report = Report("dram", options)

    def bytes_moved() -> None:
        for rows, classes, dtype in ((8, 100, "bfloat16"),) if report.quick else SHAPES:
            report.row({"shape": f"{rows}x{classes}", "dtype": dtype}, lambda r=rows, c=classes, d=dtype: measured(report, options.ncu, r, c, d))

    report.section("ncu", bytes_moved)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
