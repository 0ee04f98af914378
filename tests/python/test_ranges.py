"""NVTX ranges: none by default, and with LOSSFEED_NVTX=1 one around every batch and every loss."""

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import torch
calls = []
torch.cuda.nvtx.range_push = calls.append
torch.cuda.nvtx.range_pop = lambda: calls.append("end")
import lossfeed as lf
loader = lf.Loader((torch.zeros(8, 3), torch.arange(8) % 3), 4, num_workers=0, stats=False)
for batch in loader:
    logits = torch.zeros(4, 3, requires_grad=True)
    loader.cross_entropy(logits, batch).backward()
try:
    loader.score(torch.zeros(3, 3), batch)
except lf.SettingsError:
    calls.append("refused")
print(" ".join(calls))
compiled = torch.compile(lambda logits: loader.cross_entropy(logits, batch), backend="eager", fullgraph=True)
compiled(torch.zeros(4, 3, requires_grad=True)).backward()
"""


@pytest.mark.parametrize(
    ("switch", "ranges"),
    [
        ("", "refused"),
        ("0", "refused"),
        (
            "1",
            "lossfeed.next end lossfeed.cross_entropy end lossfeed.next end lossfeed.cross_entropy end "
            "lossfeed.next end lossfeed.score end refused",
        ),
    ],
)
def test_every_range_that_begins_ends(switch, ranges, monkeypatch):
    """A compiled step has none."""
    if switch == "1" and not torch.backends.cuda.is_built():
        ranges = "refused"
    monkeypatch.setenv("LOSSFEED_NVTX", switch)
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (told.stdout.strip(), told.returncode) == (ranges, 0), told.stderr
