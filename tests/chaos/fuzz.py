"""The fuzz targets, a minute each: `fuzz.sh` beside this file builds and runs them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .case import Attack, Case, Refuted, Trait

SCRIPT = Path(__file__).with_name("fuzz.sh")
TARGETS = (
    *("png", "jpeg", "webp", "gif", "bmp", "tiff", "pnm", "tar", "listing", "parquet", "index", "segment", "page"),
    *("state", "trace", "journal", "node"),
)
SECONDS = 60


def fuzzed(target: str) -> Trait:
    """The trait that fuzzes one format."""

    def trait(case: Case) -> None:
        # The saved inputs of every target are among the cargo tests.
        if case.short:
            return
        argv = ["bash", str(SCRIPT), str(SECONDS), target]
        said = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"SEED": str(case.seed)}
        )
        results = [json.loads(line) for line in said.stdout.splitlines() if line.startswith('{"target"')]
        if said.returncode != 0 or not results:
            raise Refuted(f"fuzz.sh {target} ended with status {said.returncode}:\n{said.stdout[-2500:]}")
        case.tries += results[0].get("runs") or 0
        case.count("contained panics", results[0].get("contained_panics") or 0)

    return trait


ATTACK = Attack("fuzz", {target: fuzzed(target) for target in TARGETS}, share=2.0, deadline_s=3600.0)
