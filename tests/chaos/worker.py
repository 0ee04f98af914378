"""The process that cases run in: a line of JSON when a trait begins and when it ends, so that a crash has a name."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from . import case as cases
from . import registry

#: Address space of a worker: memory without bound ends as an error here, not as trouble for the whole machine.
ADDRESS_SPACE = 16 << 30


def parse(name: str) -> tuple[str, list[str], int]:
    """(attack, traits, seed) of ``attack/trait,trait:seed``."""
    attack, _, rest = name.partition("/")
    traits, _, seed = rest.rpartition(":")
    if not attack or not traits or not seed.isdigit():
        raise SystemExit(f"--case {name!r}: write ATTACK/TRAIT:SEED, as a failure names it")
    return attack, traits.split(","), int(seed)


def work(name: str, short: bool) -> int:
    """Runs the cases in `name`, telling of each on the standard output."""
    attack_name, traits, seed = parse(name)
    attack = registry.attack(attack_name)
    # What a case prints, or a child of it, must not be taken for our lines.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = 0
    for trait in traits:
        if trait not in attack.traits:
            raise SystemExit(f"{attack_name} has no trait {trait!r}: choose from {', '.join(attack.traits)}")
        place = Path(tempfile.mkdtemp(prefix="chaos-"))
        # Pages of stats of this case's processes are nobody else's business.
        (place / "pages").mkdir(mode=0o700)
        os.environ["LOSSFEED_RUNTIME_DIR"] = str(place / "pages")
        print(json.dumps({"begin": trait, "place": str(place)}), file=out, flush=True)
        started = time.monotonic()
        done = cases.run(attack, cases.Case(attack_name, trait, seed, place, short))
        end = {
            "end": trait,
            "tries": done.tries,
            "failed": done.failed,
            "failures": done.failures,
            "notes": done.notes,
            "seconds": round(time.monotonic() - started, 2),
        }
        print(json.dumps(end), file=out, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        status = status or (1 if done.failed else 0)
    sys.stdout.flush()
    return status
