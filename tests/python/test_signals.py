"""A signal's exception, wherever it falls: no batch is lost, none comes twice, and nobody else is blamed for it."""

import contextlib
import dis
import functools
import logging
import multiprocessing.queues
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
import torch
from handed_out import HANDED_OUT

import lossfeed as lf
from lossfeed._base.signals import kept_while, of_signal
from lossfeed._loader.epoch_pass import Pass

SAMPLES, BATCH = 16, 4
OURS = str(Path(lf.__file__).parent)


class Preempted(Exception):
    """Save and leave."""


class Items:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return np.full(3, i, np.float32), i


def preempted(*_):
    raise Preempted


@contextlib.contextmanager
def handled(handler=preempted, number=signal.SIGUSR1):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Falling:
    """Raises `error` where the `at`-th instruction of lossfeed's Python begins in this thread."""

    def __init__(self, at, error):
        self.left, self.error, self.where = at, error, None

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def __call__(self, frame, event, _):
        # What a destructor raises Python only shows.
        if not frame.f_code.co_filename.startswith(OURS) or {"__del__", "_dismiss"} & called_by(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not (frame.f_code is Pass.__next__.__code__ and frame.f_lasti in HANDED_OUT):
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
                raise self.error
        return self


def called_by(frame):
    names = set()
    while frame is not None and frame.f_code is not Falling.__call__.__code__:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def ids_of(batch):
    return batch.ids.tolist()


def stacked(items):
    return torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])


ARRAYS = np.arange(3 * SAMPLES, dtype=np.float32).reshape(SAMPLES, 3), np.arange(SAMPLES)
#: What batches go through in Python.
WAYS = {
    "arrays": {"data": ARRAYS, "framework": "numpy"},
    "collate_fn": {"data": lf.open(Items(), thread_safe=True), "collate_fn": stacked, "cache": "1MiB"},
    "transform": {"data": ARRAYS, "transform": lambda x: x + 1},
    "sampler": {"data": ARRAYS, "sampler": torch.utils.data.SequentialSampler(range(SAMPLES)), "shuffle": None},
    # Opened once: of a plain dataset each loader would start a process to look at the items, which no batch goes through.
    "read here": {"data": lf.open(Items()), "framework": "numpy", "num_workers": 0},
}


def make(way, **others):
    common = {"batch_size": BATCH, "seed": 1, "shuffle": True, "stats": False, "num_workers": 1, "framework": "torch"}
    return lf.Loader(**common | WAYS[way] | others)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    ("way", "error"), [(way, KeyboardInterrupt) for way in WAYS] + [(way, Preempted) for way in WAYS if way != "read here"]
)
def test_wherever_it_falls_every_sample_comes_once(way, before, error):
    """At every instruction of a batch's way, the first one's with which the epoch begins, and another's: a state goes on
    behind what the loop got, and so does the iterator."""
    fallen = []
    for at in range(1, 10_000):
        # Exceptions of the user's own end a pass at the same place: some of them will do.
        if error is Preempted and at % 7:
            continue
        with make(way) as loader:
            passing = iter(loader)
            got = [ids_of(next(passing)) for _ in range(before)]
            with contextlib.suppress(error), Falling(at, error()) as falling:
                got.append(ids_of(passing.__next__()))
            if falling.left > 0:
                break
            fallen.append(falling.where)
            with make(way, num_workers=0) as other:
                other.load_state_dict(loader.state_dict())
                rest = [ids_of(batch) for batch in other]
            assert sorted(i for ids in got + rest for i in ids) == list(range(SAMPLES)), falling.where
            if error is KeyboardInterrupt:
                # A batch that is read here has no other thread to go on with: that is said.
                with contextlib.suppress(lf.UsageError) if way == "read here" else contextlib.nullcontext():
                    assert [ids_of(batch) for batch in passing] == rest, falling.where
    assert len(fallen) > (10 if error is Preempted else 50)


def test_a_signal_never_falls_into_a_queue_of_worker_processes():
    """Its lock would stay taken, and closing the queue would wait for it for ever. A thread of its own puts into it."""
    seen = []
    putting = multiprocessing.queues.Queue.put
    with lf.Loader(Items(), BATCH, num_workers=2, persistent_workers=True, framework="torch", stats=False) as loader:
        with pytest.MonkeyPatch.context() as patch:
            watched = lambda *given: (seen.append(threading.current_thread()), putting(*given))  # noqa: E731
            patch.setattr(multiprocessing.queues.Queue, "put", watched)
            for _ in range(2):
                assert sorted(i for batch in loader for i in ids_of(batch)) == list(range(SAMPLES))
    assert len(seen) >= 2 * SAMPLES // BATCH
    assert threading.main_thread() not in seen


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_signals_at_random_moments_of_worker_processes(context):
    """They interrupt its making, an ask or an answer: nothing is lost, and closing does not hang."""
    chance, data = random.Random(3), lf.open(Sleepy(0.002))
    settings = {"batch_size": BATCH, "seed": 1, "shuffle": True, "framework": "torch", "stats": False}
    with handled(number=signal.SIGALRM):
        for _ in range(20 if context == "fork" else 3):
            loader, seen = lf.Loader(data, num_workers=2, multiprocessing_context=context, **settings), []
            with contextlib.suppress(Preempted):
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 0.1 if context == "fork" else 3.0))
                for batch in loader:
                    seen.append(batch)  # before Python looks for signals again
                time.sleep(60)
            ids = [i for batch in seen for i in ids_of(batch)]
            if len(ids) < SAMPLES:
                with lf.Loader(data, num_workers=0, **settings) as rest:
                    rest.load_state_dict(loader.state_dict())
                    ids += [i for batch in rest for i in ids_of(batch)]
            loader.close()
            assert sorted(ids) == list(range(SAMPLES))


class Sleepy(Items):
    def __init__(self, seconds):
        self.seconds = seconds

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return super().__getitem__(i)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("timeout", [0.0, 60.0])
def test_a_state_after_a_signal_that_comes_while_the_loop_waits(number, timeout):
    """Real signals at many moments of a wait: behind it the batch has been taken."""
    with handled():
        for delay in range(16):  # beyond the end of the epoch, which takes 32 ms
            settings = {"num_workers": 1, "timeout": timeout, "framework": "numpy", "stats": False}
            loader, seen = lf.Loader(Sleepy(0.002), BATCH, **settings), []
            passing = iter(loader)
            timer = threading.Timer(0.002 + 0.003 * delay, signal.pthread_kill, (threading.main_thread().ident, number))
            with contextlib.suppress(KeyboardInterrupt, Preempted):
                timer.start()
                for batch in passing:
                    seen.append(batch)  # before Python looks for signals again
                time.sleep(60)
            timer.join()
            seen = [ids_of(batch) for batch in seen]
            rest = lf.Loader(Sleepy(0), BATCH, framework="numpy", stats=False)
            rest.load_state_dict(loader.state_dict())
            # Where the epoch was over the next one begins.
            after = [ids_of(batch) for batch in rest] if len(seen) < SAMPLES // BATCH else []
            assert sorted(i for ids in seen + after for i in ids) == list(range(SAMPLES))
            assert [ids_of(batch) for batch in passing] == after, "the iterator goes on"
            loader.close()
            rest.close()


@pytest.mark.parametrize("kind", ["collate_fn", "transform"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Preempted])
def test_a_batch_whose_function_was_interrupted_is_handed_out_by_the_next_call(kind, error):
    number = signal.SIGINT if error is KeyboardInterrupt else signal.SIGUSR1
    calls = []

    def function(given):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(number)
        return stacked(given) if kind == "collate_fn" else given

    with handled(), lf.Loader(ARRAYS, BATCH, num_workers=1, stats=False, **{kind: function}) as loader:
        passing, got = iter(loader), []
        with pytest.raises(error):
            for batch in passing:
                got.append(ids_of(batch))
        assert len(got) == 2
        got += [ids_of(batch) for batch in passing]
    assert [i for ids in got for i in ids] == list(range(SAMPLES))


class Handler:
    def __call__(self, signum, frame):
        signal.signal(signum, signal.SIG_DFL)  # the usual way to let a second one end everything
        raise Preempted

    def method(self, signum, frame):
        raise Preempted


HANDLERS = {
    "function": preempted,
    "named": lambda signum, frame: preempted(),
    "object": Handler(),
    "method": Handler().method,
    "partial": functools.partial(lambda extra, signum, frame: preempted(), "more"),
}


class Interrupted(Items):
    """Item 9 is interrupted in one of its places."""

    def __init__(self, where, number):
        self.where, self.number = where, number

    def __getitem__(self, i):
        item = super().__getitem__(i)
        if i != 9:
            return item
        if self.where == "item":
            time.sleep(0)
            signal.raise_signal(self.number)
        elif self.where == "words":
            raise Unspeakable(self.number)
        elif self.where == "array":
            return Lazy(item[0], self.number), item[1]
        return item


class Unspeakable(Exception):
    def __str__(self):
        signal.raise_signal(self.args[0])
        return "no words"


class Lazy:
    def __init__(self, values, number):
        self.values, self.number = values, number

    def __array__(self, *_, **__):
        signal.raise_signal(self.number)
        return self.values


class Together(Interrupted):
    def __getitems__(self, ids):
        return [self[i] for i in ids]


@pytest.mark.parametrize("kind", [Interrupted, Together])
@pytest.mark.parametrize("where", ["item", "words", "array"])
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_what_a_handler_raises_is_no_samples_fault(kind, where, on_error):
    with handled(), lf.Loader(
        kind(where, signal.SIGUSR1), BATCH, num_workers=0, on_error=on_error, framework="numpy", stats=False
    ) as loader:
        got = []
        with pytest.raises(Preempted):
            for batch in loader:
                got += ids_of(batch)
        assert got == list(range(8)) and loader.bad_samples() == []
        with lf.Loader(Items(), BATCH, framework="numpy", stats=False) as rest:
            rest.load_state_dict(loader.state_dict())
            assert [i for batch in rest for i in ids_of(batch)] == list(range(8, SAMPLES))


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_of_any_kind_is_known(handler):
    with handled(HANDLERS[handler]):
        loader = lf.Loader(Interrupted("item", signal.SIGUSR1), BATCH, num_workers=0, on_error="skip", framework="numpy")
        with pytest.raises(Preempted):
            list(loader)


def test_a_handlers_exception_is_known_where_native_code_was_interrupted():
    """That code catches it before any frame of Python's but the handler's own is in its traceback."""
    with handled():
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Preempted as error:
            raised = error
    assert of_signal(raised)
    assert of_signal(raised.with_traceback(raised.__traceback__.tb_next))

    def own(number, frame):
        raise Preempted

    def begins():
        own(3, sys._getframe().f_back)

    try:
        begins()
    except Preempted as error:
        assert not of_signal(error), "a call, by its caller's frame"
        trace, resumes = error.__traceback__.tb_next, [i.offset for i in dis.get_instructions(begins) if i.opname == "RESUME"]
        if resumes:
            raised = error.with_traceback(TracebackType(trace.tb_next, trace.tb_frame, resumes[0], trace.tb_lineno))
            assert of_signal(raised), "a handler that is called where a function is about to begin gets the frame before"

    for given in ((3, None), (3, sys._getframe().f_back), (None, sys._getframe())):
        with pytest.raises(Preempted) as told:
            own(*given)
        assert not of_signal(told.value) and not of_signal(told.value.with_traceback(told.value.__traceback__.tb_next))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_signal_between_two_calls_of_a_dataset_is_nobodys_fault(monkeypatch, on_error):
    """In what the engine itself calls there."""
    now = threading.current_thread

    def interrupted():
        if asked:
            asked.clear()
            signal.raise_signal(signal.SIGUSR1)
        return now()

    asked = []
    monkeypatch.setattr(threading, "current_thread", interrupted)
    with handled(), lf.Loader(Items(), BATCH, num_workers=0, on_error=on_error, framework="numpy", stats=False) as loader:
        passing = iter(loader)
        got = ids_of(next(passing))
        asked.append(1)
        with pytest.raises(Preempted):
            next(passing)
        assert loader.bad_samples() == []
        with lf.Loader(Items(), BATCH, framework="numpy", stats=False) as rest:
            rest.load_state_dict(loader.state_dict())
            assert got + [i for batch in rest for i in ids_of(batch)] == list(range(SAMPLES))


def test_what_a_dataset_raises_by_itself_stays_its_own():
    """Also where it calls what is a handler too, or passes frames about."""

    def helper(number, frame):
        raise Preempted

    class Own(Items):
        def __getitem__(self, i):
            if i == 5:
                preempted(3, None)
            if i == 6:
                helper(i, sys._getframe().f_back)
            return super().__getitem__(i)

    with handled(), lf.Loader(Own(), BATCH, num_workers=0, on_error="skip", framework="numpy", stats=False) as loader:
        assert sum(len(batch) for batch in loader) == SAMPLES - 2
        assert [bad["id"] for bad in loader.bad_samples()] == [5, 6]


def test_opening_is_interrupted_as_such():
    class First(Items):
        def __getitem__(self, i):
            signal.raise_signal(signal.SIGUSR1)

    class Length(Items):
        def __len__(self):
            signal.raise_signal(signal.SIGUSR1)

    for dataset in (First(), Length()):
        with handled(), pytest.raises(Preempted):
            lf.Loader(dataset, BATCH, framework="numpy")


def test_a_handlers_exception_in_a_log_handler_is_raised_and_costs_no_batch():
    class Raising(logging.Handler):
        def emit(self, record):
            signal.raise_signal(signal.SIGUSR1)

    class Bad(Items):
        def __getitem__(self, i):
            if i == 9:
                raise ValueError("torn")
            return super().__getitem__(i)

    raising, logger = Raising(), logging.getLogger("lossfeed")
    logger.addHandler(raising)
    try:
        with handled(), lf.Loader(Bad(), BATCH, num_workers=1, on_error="skip", framework="numpy", stats=False) as loader:
            passing, got, raised = iter(loader), [], 0
            while True:
                try:
                    got += ids_of(next(passing))
                except Preempted:
                    raised += 1
                except StopIteration:
                    break
            assert raised and got == [i for i in range(SAMPLES) if i != 9]
    finally:
        logger.removeHandler(raising)


def test_each_signal_that_was_kept_is_raised_though_a_handler_before_raises():
    seen = []

    def first(*_):
        seen.append("first")
        raise Preempted

    with handled(first), handled(lambda *_: seen.append("second"), signal.SIGUSR2), pytest.raises(Preempted):
        with kept_while(forking=True):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)
            assert not seen
    assert seen == ["first", "second"]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.mark.parametrize("cache", [None, 4096])
def test_ctrl_c_while_processes_are_forked_is_raised(cache):
    # Python runs hooks behind a fork, and what a signal's handler raises in one of them is printed and lost.
    script = f"""
    import os, signal, numpy as np, lossfeed as lf
    class Items:
        def __len__(self): return 8
        def __getitem__(self, i): return np.float32(i), i
    os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        next(iter(lf.Loader(Items(), 2, num_workers=2, cache={cache}, stats=False)))
    except KeyboardInterrupt:
        print("raised", flush=True)
        os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "raised\n" and "ignored" not in done.stderr, done.stderr


@pytest.mark.parametrize("cache", [None, 4096])
def test_workers_whose_parent_is_gone_before_they_begin_end_too(cache):
    # They hold the pipes that this test reads to their ends.
    script = f"""
    import os, time, numpy as np, lossfeed as lf
    class Items:
        def __len__(self): return 8
        def __getitem__(self, i): return np.float32(i), i
    os.register_at_fork(after_in_child=lambda: time.sleep(1), after_in_parent=lambda: os._exit(0))
    next(iter(lf.Loader(Items(), 2, num_workers=2, cache={cache}, stats=False)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
