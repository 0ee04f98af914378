"""Follows a tensor through the package: which of its functions get it, or what was measured of it, in order."""

import sys
from pathlib import Path

import torch

import lossfeed

FOLDER = str(Path(lossfeed.__file__).parent)


def _parts(value):
    """Tensors, native buffers and borrowed memory in a value, those in tuples too."""
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage().data_ptr()
    elif isinstance(value, tuple):
        for one in value:
            yield from _parts(one)
    elif hasattr(value, "owner"):
        yield from _parts(value.owner)


def walk(call, tensor, until):
    """The stops of `tensor` in `call`, as (file, function), up to the first call of the native function `until`.

    A stop is a function of the package that is called with the tensor, or with what such a function has returned. A
    native function is one too: the last to be called before Python goes on is in `_native`.
    """
    followed, stops, inside = set(_parts(tensor)), [], []
    over = False

    def stop(file, function):
        if (file, function) not in stops:
            stops.append((file, function))

    def watch(frame, event, what):
        nonlocal over
        if over:
            return
        if event == "c_call" and type(getattr(what, "__self__", None)).__module__ == "lossfeed._native":
            if what.__name__ in ("apply_scores", "launch", "forward"):
                stop("_native", what.__name__)
            over = what.__name__ == until
        elif event == "c_call" and getattr(what, "__module__", None) == "lossfeed._native":
            stop("_native", what.__name__)
        code = frame.f_code
        if not code.co_filename.startswith(FOLDER) or event not in ("call", "return"):
            return
        if event == "call":
            given = list(frame.f_locals.values())
            fields = any(type(value).__name__ == "Buffer" for value in given)
            if fields or any(part in followed for value in given for part in _parts(value)):
                stop(str(Path(code.co_filename).relative_to(FOLDER)), code.co_qualname)
                inside.append(frame)
        elif inside and inside[-1] is frame:
            inside.pop()
            followed.update(_parts(what))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert over, f"{until} was never called"
    return stops
