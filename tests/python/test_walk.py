"""A logits tensor on its way to the score table: the stops in pybind/ARCHITECTURE.md, at most a dozen."""

import re
from pathlib import Path

import numpy as np
import torch
from walks import walk

import lossfeed as lf

README = Path(__file__).resolve().parents[2] / "pybind" / "ARCHITECTURE.md"
STOPS_MAX = 12


def documented(heading):
    """The numbered stops below a heading of the README, as (file, function)."""
    text = README.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\d+\. `([\w./]+)`: `([\w.]+)`", text, re.MULTILINE)


def test_on_the_cpu_the_walk_is_the_documented_one():
    data = np.zeros((32, 4), np.float32), np.arange(32) % 4
    with lf.Loader(data, 8, num_workers=0, framework="torch", stats=False) as loader:
        passing = iter(loader)
        for _ in range(2):  # the second call has nothing left to load
            batch, logits = next(passing), torch.randn(8, 4, requires_grad=True)
            stops = walk(lambda: loader.cross_entropy(logits, batch), logits, "apply_scores")  # noqa: B023
        assert loader.stats()["scores_total"] == 16
    wanted = documented("On the CPU")
    assert stops == [stop for stop in wanted if not stop[0].endswith(".rs")], stops
    assert len(wanted) <= STOPS_MAX


def test_the_stops_in_rust_are_where_the_readme_has_them():
    root = README.parents[1]
    for heading in ("On the CPU", "On a CUDA device"):
        wanted = documented(heading)
        assert 0 < len(wanted) <= STOPS_MAX
        for file, function in wanted:
            if file.endswith(".rs"):
                assert re.search(rf"\bfn {function}\b", (root / file).read_text()), (file, function)
