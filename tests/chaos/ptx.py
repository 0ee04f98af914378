"""Every kernel test on translated PTX: the shipped one and compute_90's, special functions at the ends of their error."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

from .case import Attack, Case, Refuted, Trait

ROOT = Path(__file__).resolve().parents[2]
ARGV = ["cargo", "test", "--locked", "--quiet", "-p", "lossfeed-tests", "--test", "kernels", "--", "fiber::"]
ERRORS = ("none", "above", "below", "scattered")


def compute_90(place: Path) -> str:
    """PTX that sm_90.cubin's compiler makes of the same sources, in a file."""
    spec = importlib.util.spec_from_file_location("build_ptx", ROOT / "kernels" / "build_ptx.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    library = build.install(ROOT / "target" / "nvrtc", "12.9")
    (place / "compute_90.ptx").write_bytes(build.compile_image(library, build.source(), "compute_90").rstrip(b"\0"))
    return str(place / "compute_90.ptx")


def translated(target: str, error: str) -> Trait:
    """The trait of one PTX with one error of its special functions."""

    def trait(case: Case) -> None:
        # A slice of this is among the cargo tests.
        if case.short:
            return
        ptx = compute_90(case.place) if target == "compute_90" else "shipped"
        asked = {"LOSSFEED_PTX": ptx, "LOSSFEED_PTX_ERROR": error, "PROPTEST_RNG_SEED": str(case.seed)}
        said = subprocess.run(
            ARGV, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | asked
        )
        passed = re.findall(r"(\d+) passed", said.stdout)
        if said.returncode != 0 or not passed or passed == ["0"]:
            raise Refuted(f"{asked}: {' '.join(ARGV)} ended with status {said.returncode}:\n{said.stdout[-2500:]}")
        case.tries += int(passed[0])

    return trait


TRAITS = {f"{target}-{error}": translated(target, error) for target in ("compute_75", "compute_90") for error in ERRORS}
ATTACK = Attack("ptx", TRAITS, share=1.0, deadline_s=3600.0)
