#!/usr/bin/env python3
"""Reassembles kernels/prebuilt/lossfeed.ptx for the GPUs it will meet, without one.

    python3 kernels/check_ptx.py WORK_DIRECTORY

A driver's JIT compiler is ptxas; the ptxas of several releases, from PyPI, stands in for several drivers. Fails if one refuses
the PTX, if a kernel spills registers to memory, or if a kernel that reads logits does so without 128-bit loads (a backward: without
128-bit stores). Prints the table of kernels/README.md. WORK_DIRECTORY keeps the downloads.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PTX = Path(__file__).resolve().parent / "prebuilt" / "lossfeed.ptx"
# Release: package, GPUs it knows of ours. 12.0 is the oldest that reads PTX ISA 8.0.
ASSEMBLERS = {
    "12.0": ("nvidia-cuda-nvcc-cu12==12.0.*", ["sm_80", "sm_90"]),
    "12.9": ("nvidia-cuda-nvcc-cu12==12.9.*", ["sm_80", "sm_90", "sm_100", "sm_120"]),
    "13.0": ("nvidia-cuda-nvcc==13.0.*", ["sm_80", "sm_90", "sm_100", "sm_120"]),
}
WIDE_LOAD = re.compile(r"ld\.global\.(nc|cs)\.v4\.u32")
WIDE_STORE = re.compile(r"st\.global\.cs\.(v4\.(u32|f32)|v2\.(u64|f64))")
READS_LOGITS = ("score_", "smooth_", "backward_", "probability_")


def ptxas(directory: Path, package: str) -> Path:
    """Unpacks the wheel (it has no dependencies that ptxas needs) and finds the program in it."""
    found = sorted(directory.glob("**/bin/ptxas"))
    if not found:
        python = directory.parent / "pip" / "bin" / "python"
        if not python.exists():
            venv.create(directory.parent / "pip", with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", directory]
        subprocess.run([*command, package], check=True)
        found = sorted(directory.glob("**/bin/ptxas"))
    if not found:
        sys.exit(f"{package} holds no ptxas for this platform")
    found[0].chmod(0o755)
    return found[0]


def kernels(text: str) -> dict[str, str]:
    """The entry points' names and bodies."""
    pieces = re.split(r"\.visible \.entry (\w+)\(", text)
    return dict(zip(pieces[1::2], pieces[2::2]))


def complaints(release: str, arch: str, assembler: Path) -> tuple[list[str], dict[str, int]]:
    """What is wrong on this GPU, and the registers that every kernel uses."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [assembler, "--gpu-name", arch, "--verbose", "--output-file", Path(scratch) / "out.cubin", PTX]
        done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    if done.returncode:
        return [f"ptxas {release} refuses the PTX for {arch}: {log.strip()[:500]}"], {}
    # ptxas names a function, then its spills, then its registers.
    found = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", log, re.S)
    wrong = [f"{name} on {arch} (ptxas {release}): spills {stores} + {loads} bytes" for name, stores, loads, _ in found if int(stores) + int(loads)]
    missing = set(kernels(PTX.read_text())) - {name for name, *_ in found}
    wrong += [f"ptxas {release} reports nothing of {name} on {arch}" for name in sorted(missing)]
    registers = {name.removeprefix("lossfeed_"): int(used) for name, *_, used in found}
    return wrong, registers


def table(columns: dict[str, dict[str, int]]) -> str:
    """Registers by family and GPU, a number for each type: f16, bf16, f32, f64."""
    family = re.compile(r"_(f16|bf16|f32|f64)$")
    rows: dict[str, dict[str, dict[str, int]]] = {}
    for column, registers in columns.items():
        for name, used in registers.items():
            found = family.search(name)
            kind = found[1] if found else ""
            rows.setdefault(family.sub("", name), {}).setdefault(column, {})[kind] = used

    def cell(by_type: dict[str, int]) -> str:
        return ", ".join(str(by_type[kind]) for kind in ("", "f16", "bf16", "f32", "f64") if kind in by_type)

    lines = ["| kernel | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name, cells in sorted(rows.items()):
        lines.append(f"| `{name}` | " + " | ".join(cell(cells.get(c, {})) for c in columns) + " |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    work = Path(sys.argv[1]).resolve() / "ptxas"
    wrong = []
    for name, body in kernels(PTX.read_text()).items():
        if name.removeprefix("lossfeed_").startswith(READS_LOGITS) and not WIDE_LOAD.search(body):
            wrong.append(f"{name} has no 128-bit loads")
        if "backward" in name and not WIDE_STORE.search(body):
            wrong.append(f"{name} has no 128-bit stores")
    columns = {}
    for release, (package, archs) in ASSEMBLERS.items():
        assembler = ptxas(work / release, package)
        for arch in archs:
            more, columns[arch] = complaints(release, arch, assembler)  # the last release's stay
            wrong += more
    print(table(columns))
    if wrong:
        sys.exit("\n".join(wrong))
    print("the PTX assembles everywhere, without spills, with 128-bit loads")


if __name__ == "__main__":
    main()
