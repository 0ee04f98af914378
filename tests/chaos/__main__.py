"""The campaign's command line: `python tests/chaos --help`.

`make chaos` calls it with a time; a failure prints the call that repeats it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

# As a package, so that no module here hides one of the same name elsewhere.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from chaos import campaign, registry, worker  # noqa: E402


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/chaos", description="Attacks on lossfeed, drawn from a seed.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="the campaign's seed (default: drawn, and printed)")
    parser.add_argument("--only", default="", help=f"attacks, or ATTACK/TRAIT, with commas: {','.join(registry.NAMES)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="folder of the JSON record (default dist/chaos), or a file that ends in .json",
    )
    parser.add_argument("--case", default="", metavar="ATTACK/TRAIT:SEED", help="one case, as a failure named it")
    parser.add_argument(
        "--short", action="store_true", help="the fixed part of `make test`: every trait once, little of it"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> int:
    # A shell that starts something in the background has it ignore Ctrl-C, and all that it starts in turn.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = options().parse_args()
    if found.worker:
        return worker.work(found.case, found.short)
    only = [name for name in found.only.split(",") if name]
    if found.case:
        return campaign.repeat(found.case, found.short)
    if found.short:
        return campaign.short(only, found.seed or 1, found.jobs, found.out)
    return campaign.campaign(only, found.seed, found.minutes, found.jobs, found.out or Path("dist/chaos"))


if __name__ == "__main__":
    sys.exit(main())
