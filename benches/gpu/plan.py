"""The checks of a run, as data: `first` and `rest`, in order of value, with the seconds each check may take.

Checks of truth share a step and run side by side; a check of cost has the GPU to itself. A step's budget is its longest
check's, and the budgets of a list, with `START_S` and `END_S`, add up to its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds of a list, from the start of the command.
DEADLINES_S = {"first": 480, "rest": 200}
#: Unpacking, the keeper's context.
START_S = 10
#: Kept free for the last record and table.
END_S = 10
#: What `rest` keeps for the checks that failed in `first`.
AGAIN_S = 30


@dataclass(frozen=True)
class Check:
    """One program beside this file, with the sections it runs."""

    name: str
    budget_s: int
    program: str
    only: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    #: A failure is a failure of the whole run.
    truth: bool = False
    #: Skipped, with the reason, where one is missing: gpu, kernels (the bundle's test program), ncu, compute-sanitizer.
    needs: tuple[str, ...] = ()
    #: Helps checks after it; a later run does not make up for it.
    aid: bool = False
    #: A dry run has it on the driver double, else on the CPU.
    double: bool = False


Step = tuple[Check, ...]

MACHINE = Check("machine", 15, "own_tests", ("machine",), truth=True)
SMOKE = Check("smoke", 15, "correct", ("smoke",), truth=True, double=True)

FIRST: tuple[Step, ...] = (
    (MACHINE,),
    (SMOKE,),
    (
        Check("kernels", 75, "own_tests", ("kernels",), truth=True, needs=("kernels",)),
        Check("python", 75, "own_tests", ("python",), truth=True),
        Check("scores", 75, "correct", ("scores", "repeat"), truth=True, double=True),
        Check("gradients", 75, "correct", ("gradients", "opinfo"), truth=True, double=True),
        Check("edges", 75, "correct", ("edges", "images"), truth=True, double=True),
        Check("mail", 40, "correct", ("mail",), truth=True, double=True),
        # Fills the caches of torch.compile for the checks of cost.
        Check("warm", 60, "timing", ("warm",), needs=("gpu",), aid=True),
    ),
    (Check("mission", 45, "mission", double=True),),
    (Check("forward", 22, "timing", ("bandwidth", "forward"), double=True),),
    (Check("sweep", 15, "own_tests", ("sweep",), needs=("gpu", "kernels")),),
    (Check("backward", 35, "timing", ("backward",), double=True),),
    (Check("small", 18, "timing", ("small", "graph", "host"), double=True),),
    (Check("step", 14, "timing", ("step",), double=True),),
    (Check("copy", 18, "staging", ("copy",), double=True),),
    (Check("overlap", 18, "staging", ("overlap",), double=True),),
    (Check("paths", 25, "staging", ("paths",), double=True),),
    (Check("train", 70, "training", arguments=("--seeds", "1", "--epochs", "4"), double=True),),
    (Check("ncu", 30, "dram", needs=("ncu",)),),
    (Check("memcheck", 45, "own_tests", ("memcheck",), truth=True, needs=("gpu", "kernels", "compute-sanitizer")),),
)

REST: tuple[Step, ...] = (
    (SMOKE,),
    (Check("racecheck", 35, "own_tests", ("racecheck",), truth=True, needs=("gpu", "kernels", "compute-sanitizer")),),
    (Check("pictures", 15, "staging", ("pictures",), double=True),),
    (Check("loaders", 25, "staging", ("loaders",)),),
    (Check("seeds", 60, "training", arguments=("--seeds", "1", "--epochs", "3", "--first-seed", "1"), double=True),),
)
LISTS = {"first": FIRST, "rest": REST}
ALL: dict[str, Check] = {check.name: check for steps in LISTS.values() for step in steps for check in step}


def budget_s(step: Step) -> int:
    """The longest of its checks'."""
    return max(check.budget_s for check in step)
