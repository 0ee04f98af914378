"""Numbers of papers beside those computed here, by ``lossfeed-lab papers --whole``: the record.

    cargo build --release -p lossfeed-lab
    python benches/scenarios/papers.py --lab target/release/lossfeed-lab [--gavel FOLDER]

FOLDER is that of ``cluster_traces.py``; without it SiloD's Fig. 8 and 12 to 15 are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from record import Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gavel", type=Path, help="the folder of Gavel's traces")
    parser.add_argument("--lab", default="lossfeed-lab", help="the program")
    parser.add_argument("--date", help="the record's date, if it is not today's")
    args = parser.parse_args()
    command = [args.lab, "papers", "--whole", "--json", *(["--gavel", str(args.gavel)] if args.gavel else [])]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    found = json.loads(run.stdout)
    record = Record("papers", {"whole": True, "gavel": args.gavel is not None}, args.date)
    for row in found["checked"]:
        record.add({key: row[key] for key in ("paper", "claim", "says", "within", "ours", "agrees")})
        verdict = "agrees " if row["agrees"] else "DIFFERS"
        print(f"{verdict} {row['says']:10.2f} {row['ours']:10.2f}  {row['paper'][:20]:20} {row['claim']}")
    agreeing = sum(row["agrees"] for row in found["checked"])
    print(f"{agreeing} of {len(found['checked'])} agree; {len(found['not_checked'])} groups need more than a replay")


if __name__ == "__main__":
    main()
