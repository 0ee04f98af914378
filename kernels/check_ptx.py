#!/usr/bin/env python3
"""What assemblers make of kernels/prebuilt, without a GPU.

    python3 kernels/check_ptx.py [--write] WORK_DIRECTORY

Counts the shipped machine code of every kernel (machine_code.py says how) and holds it to kernels/machine_code.csv:
what has become worse fails, with the numbers, and what has become better wants the table written anew. `--write` writes
it: the change of the table is then there to be read beside the change of the code.

And assembles the PTX, which GPUs without machine code of their own get. A driver's compiler is ptxas; the ptxas of
several releases stands in for several drivers. Fails if one refuses the PTX, or if a kernel spills registers to memory.

The tools are NVIDIA's own, from PyPI; WORK_DIRECTORY keeps them.
"""

import argparse
import csv
import dataclasses
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build_ptx import HERE, install_package, unpack
from machine_code import READS_PER_LOGIT, Cost, costs

TABLE = HERE / "machine_code.csv"
MADE_BY = "# Made by: python3 kernels/check_ptx.py --write WORK_DIRECTORY"
DISASSEMBLER = "nvidia-cuda-nvdisasm==13.2.78"
# Release: package, and GPUs that the PTX is for. 12.0 is the oldest that reads PTX ISA 8.0; 9.0 and 12.0 are there for
# a driver that refuses their machine code.
ASSEMBLERS = {
    "12.0": ("nvidia-cuda-nvcc-cu12==12.0.*", ["sm_75", "sm_90"]),
    "12.9": ("nvidia-cuda-nvcc-cu12==12.9.*", ["sm_87", "sm_101"]),
    "13.0": ("nvidia-cuda-nvcc==13.0.*", ["sm_75", "sm_120"]),
}
Key = tuple[str, str]  # kernel, GPU


def tool(directory: Path, package: str, name: str) -> Path:
    """Unpacks the wheel (it has no dependencies that the program needs) and finds the program in it."""
    found = sorted(directory.glob(f"**/bin/{name}"))
    if not found:
        install_package(directory.parent, package, directory)
        found = sorted(directory.glob(f"**/bin/{name}"))
    if not found:
        sys.exit(f"{package} holds no {name} for this platform")
    found[0].chmod(0o755)
    return found[0]


def disassembled(program: Path, images: list[Path]) -> dict[Key, Cost]:
    """What every kernel costs on every GPU that has machine code."""
    files = sorted((file for file in images if file.suffix == ".cubin"), key=lambda file: int(file.stem[3:]))

    def text(file: Path) -> str:
        return subprocess.run([program, file], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(2) as pool:
        found = {file.stem: costs(said) for file, said in zip(files, pool.map(text, files), strict=True)}
    return {(kernel, gpu): cost for gpu, kernels in found.items() for kernel, cost in sorted(kernels.items())}


COLUMNS = [field.name for field in dataclasses.fields(Cost)]


def write(path: Path, table: dict[Key, Cost]) -> None:
    """The table, a line for each kernel and GPU."""
    with path.open("w", newline="") as file:
        file.write(MADE_BY + "\n")
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["kernel", "gpu", *COLUMNS])
        for (kernel, gpu), cost in table.items():
            rows.writerow([kernel, gpu, *("" if v is None else v for v in dataclasses.astuple(cost))])


def read(path: Path) -> dict[Key, Cost]:
    """The table as it was written."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))

    def number(text: str) -> float | int | None:
        return None if text == "" else float(text) if "." in text else int(text)

    return {(row["kernel"], row["gpu"]): Cost(*(number(row[c]) for c in COLUMNS)) for row in rows}  # type: ignore[arg-type]


def differences(table: dict[Key, Cost], now: dict[Key, Cost]) -> tuple[list[str], list[str]]:
    """What is worse than the table says, and what is otherwise not as it says."""
    worse, better = [], []
    for key in sorted(table.keys() - now.keys()):
        better.append(f"{key[0]} for {key[1]}: in the table, not in the machine code")
    for key, cost in now.items():
        if (known := table.get(key)) is None:
            better.append(f"{key[0]} for {key[1]}: not in the table")
            continue
        for column in COLUMNS:
            before, after = getattr(known, column), getattr(cost, column)
            if before == after:
                continue
            # Loads in flight are the one thing of which more is better; a loop that is no longer found is not known to
            # be good.
            is_worse = after is None or before is not None and (after > before) != (column == "loads_in_flight")
            (worse if is_worse else better).append(f"{key[0]} for {key[1]}: {column} {before} -> {after}")
    return worse, better


def without_loop(now: dict[Key, Cost]) -> list[str]:
    """Kernels that read logits and have no loop with 16-byte loads."""
    reads = [(kernel, gpu) for kernel, gpu in now if kernel.split("_")[0] in READS_PER_LOGIT]
    return [f"{kernel} for {gpu}: no loop with 16-byte loads" for kernel, gpu in reads if now[kernel, gpu].loads_in_flight is None]


def refusals(release: str, gpu: str, assembler: Path, ptx: Path) -> list[str]:
    """What is wrong with the PTX for this assembler and GPU."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [assembler, "--gpu-name", gpu, "--verbose", "--output-file", Path(scratch) / "out.cubin", ptx]
        done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    if done.returncode:
        return [f"ptxas {release} refuses the PTX for {gpu}: {log.strip()[:500]}"]
    # ptxas names a function, then its spills.
    found = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads", log, re.S)
    wrong = [f"{name} on {gpu} (ptxas {release}): spills {stores} + {loads} bytes" for name, stores, loads in found if int(stores) + int(loads)]
    missing = set(re.findall(r"\.visible \.entry (\w+)\(", ptx.read_text())) - {name for name, *_ in found}
    return wrong + [f"ptxas {release} reports nothing of {name} on {gpu}" for name in sorted(missing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table anew")
    parser.add_argument("directory", type=Path, metavar="WORK_DIRECTORY")
    options = parser.parse_args()
    work = options.directory.resolve() / "ptxas"
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        images = unpack(work, Path(scratch))
        (ptx,) = (file for file in images if file.suffix == ".ptx")
        runs = [
            pool.submit(refusals, release, gpu, tool(work / release, package, "ptxas"), ptx)
            for release, (package, gpus) in ASSEMBLERS.items()
            for gpu in gpus
        ]
        now = disassembled(tool(work / DISASSEMBLER.replace("==", "-"), DISASSEMBLER, "nvdisasm"), images)
        refused = [line for run in runs for line in run.result()]
    wrong = refused + without_loop(now)
    if options.write:
        write(TABLE, now)
        print(f"{TABLE}: {len(now)} kernels written")
    else:
        worse, better = differences(read(TABLE), now)
        if worse:
            wrong += ["worse than kernels/machine_code.csv (to accept it: kernels/check_ptx.py --write):", *worse, *better]
        elif better:
            wrong += ["better than kernels/machine_code.csv: run kernels/check_ptx.py --write and commit it:", *better]
    if wrong:
        sys.exit("\n".join(wrong))
    print("the machine code is as its table says; the PTX assembles everywhere, without spills")


if __name__ == "__main__":
    main()
