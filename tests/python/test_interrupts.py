"""Ends that are asked for: they pass through a dataset as themselves, between two items; and what hangs is left
behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

import lossfeed as lf

#: For a whole process, on a machine that is busy with other things.
LONG = 240


class Raises(torch.utils.data.Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if i == 13:
            raise self.error
        return np.float32(i), i


class RaisesForABatch(Raises):
    def __getitems__(self, ids):
        return [self[i] for i in ids]


class Asked(BaseException):
    """As pytest's own and asyncio's: no error."""


@pytest.mark.parametrize("kind", [Raises, RaisesForABatch])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_what_asks_for_the_end_passes_through_as_itself_and_is_no_bad_sample(kind, workers, on_error):
    for error in (KeyboardInterrupt("me"), SystemExit(3), Asked()):
        loader = lf.Loader(kind(error), 4, num_workers=workers, on_error=on_error, stats=False)
        with pytest.raises(type(error)) as raised:
            list(loader)
        assert raised.value is error or (workers > 0 and raised.value.args == error.args)
        assert loader.stats()["bad_samples_total"] == 0 and loader.bad_samples() == []
        loader.close()


def test_ctrl_c_in_the_calling_thread_passes_through_too():
    class Pressed(Raises):
        def __getitem__(self, i):
            if i == 13:
                signal.raise_signal(signal.SIGINT)
            return np.float32(i), i

    loader = lf.Loader(Pressed(None), 4, num_workers=0, on_error="skip")
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert loader.stats()["bad_samples_total"] == 0


def process(body, *arguments):
    """`body` in a process of its own."""
    head = """
    import os, signal, sys, threading, time, warnings, numpy as np, lossfeed as lf
    from lossfeed._loader import closing as _closing
    _closing.EXIT_S = 0.3
    main = threading.main_thread()
    """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(running, code):
    """Its output, once it has ended with that code."""
    try:
        out, err = running.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        running.kill()
        pytest.fail(f"it did not end: {running.communicate()}")
    assert running.returncode == code, (running.returncode, out, err)
    return out, err


def test_an_exit_in_a_dataset_is_the_processs():
    out, err = ended(
        process(
            """
            class Set:
                def __len__(self): return 8
                def __getitem__(self, i):
                    if i == 5: sys.exit(9)
                    return np.float32(i), i
            for batch in lf.Loader(Set(), 2, num_workers=2): pass
            print("not reached")
            """
        ),
        9,
    )
    assert out == "" and err == ""


@pytest.mark.parametrize("end", ["signal", "close", "drop"])
def test_a_slow_dataset_is_left_between_two_items(tmp_path, end):
    """What is read after the end was asked for: an item a thread, as each of them may have begun one more."""
    running = process(
        """
        class Slow:
            thread_safe = True
            def __len__(self): return 400
            def __getitem__(self, i):
                if threading.current_thread() is not main:
                    with open(sys.argv[1], "a") as log: log.write("x")
                    time.sleep(0.03)
                return np.float32(i), i
        def asked(): return os.path.getsize(sys.argv[1]) if os.path.exists(sys.argv[1]) else 0
        loader = lf.Loader(Slow(), 200, num_workers=2)
        it = iter(loader)
        it.begin()
        while asked() < 4: time.sleep(0.01)
        try:
            if sys.argv[2] == "signal":
                os.kill(os.getpid(), signal.SIGINT)
                next(it)
            elif sys.argv[2] == "close":
                before = asked()
                loader.close()
            else:
                del it, loader
        except KeyboardInterrupt:
            pass
        print(asked(), flush=True)
        """,
        tmp_path / "log",
        end,
    )
    out, err = ended(running, 0)
    assert err == ""
    # The rest of the two batches would be hundreds.
    assert (tmp_path / "log").stat().st_size - int(out) <= 6 and int(out) < 40


HANGS = {
    "a sleep": "time.sleep(1000)",
    "a read": "os.read(reading, 1)",
    "a lock": "threading.Event().wait()",
}


@pytest.mark.parametrize("how", HANGS)
@pytest.mark.parametrize("held", ["held", "dropped", "closed"])
def test_a_read_that_hangs_holds_up_no_exit_and_keeps_the_exit_code(how, held):
    running = process(
        f"""
        reading, writing = os.pipe()
        class Stuck:
            thread_safe = True
            def __len__(self): return 8
            def __getitem__(self, i):
                if threading.current_thread() is not main:
                    inside.set()
                    {HANGS[how]}
                return np.float32(i), i
        inside = threading.Event()
        loader = lf.Loader(Stuck(), 2, num_workers=2)
        it = iter(loader)
        it.begin()
        inside.wait()
        if {held!r} == "dropped": del it, loader
        if {held!r} == "closed":
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                loader.close(timeout=0.05)
            (one,) = said
            assert one.category is lf.ThreadWarning
            print(one.message)
        sys.exit(7)
        """
    )
    out, err = ended(running, 7)
    assert "ThreadWarning: reads that hang: " in err and "Stuck is in item " in err, err
    assert "in __getitem__" in err or how == "a lock", err
    if held == "closed":
        # One thread reads; the other waited for its turn and has gone.
        assert out.count("lossfeed-") == 1 and "batch 0 of epoch 0" in out or "batch 1 of epoch 0" in out
        assert "Stuck is in item " in out and "after 0.05 s" in out


def test_ctrl_c_leaves_a_read_that_hangs():
    running = process(
        """
        class Stuck:
            thread_safe = True
            def __len__(self): return 8
            def __getitem__(self, i):
                if threading.current_thread() is not main:
                    print("reading", flush=True)
                    time.sleep(1000)
                return np.float32(i), i
        for batch in lf.Loader(Stuck(), 2, num_workers=1): pass
        """
    )
    assert running.stdout.readline() == "reading\n"
    running.send_signal(signal.SIGINT)
    _, err = ended(running, -signal.SIGINT)
    assert "KeyboardInterrupt" in err and "Stuck is in item" in err


def test_a_read_that_returns_while_the_interpreter_goes_does_not_bring_the_process_down():
    running = process(
        """
        reading, writing = os.pipe()
        class Stuck:
            thread_safe = True
            def __len__(self): return 8
            def __getitem__(self, i):
                if threading.current_thread() is not main:
                    inside.set()
                    os.read(reading, 1)
                return np.zeros(100_000, np.float32), i
        class Late:
            # Runs when the modules are taken apart, long after the exit functions.
            def __del__(self, write=os.write, writing=writing, sleep=time.sleep):
                write(writing, b"12345678")
                sleep(0.3)
        inside = threading.Event()
        loader = lf.Loader(Stuck(), 2, num_workers=3)
        it = iter(loader)
        it.begin()
        inside.wait()
        late = Late()
        sys.exit(7)
        """
    )
    ended(running, 7)


def test_arrays_that_a_loader_thread_has_last_do_not_bring_the_process_down():
    """The threads of loaders that were dropped give the rows back while the interpreter goes, and the rows' owner waits
    in the middle."""
    running = process(
        """
        import torch
        _closing.EXIT_S = 60
        rows, length = 6, 4 << 20  # copying one takes longer than letting go of a loader
        memory = np.zeros(rows * length, np.uint8)
        class Owner:
            __array_interface__ = {"shape": (rows, length), "typestr": "|u1", "data": (memory.ctypes.data, False), "version": 3}
            def __del__(self, sleep=time.sleep):
                sleep(0.2)
        def loader():
            data = torch.from_numpy(np.asarray(Owner()))
            return lf.Loader((data, torch.zeros(rows, dtype=torch.int64)), 1, num_workers=1, stats=False)
        loaders = [loader() for _ in range(8)]
        passes = [iter(loader) for loader in loaders]
        for one in passes:
            next(one)
        del loaders, passes, one, loader
        sys.exit(7)
        """
    )
    ended(running, 7)


def test_memory_that_a_thread_left_behind_still_fills_stays():
    inside, go = threading.Event(), threading.Event()

    class Late(torch.utils.data.Dataset):
        thread_safe = True

        def __len__(self):
            return 4

        def __getitem__(self, i):
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                assert go.wait(LONG)
            return np.full(300_000, i, np.float32), i

    loader = lf.Loader(Late(), 2, num_workers=1, cache="100%", stats=False)
    it = iter(loader)
    it.begin()
    assert inside.wait(LONG)
    with pytest.warns(lf.ThreadWarning, match=r"batch 0 of epoch 0; Late is in item \d at .* in \w+; the loader was closed without"):
        loader.close(timeout=0.01)
    del it
    go.set()
    loader.close(timeout=None)
    with pytest.raises(lf.SettingsError, match="timeout=-1"):
        loader.close(timeout=-1)


def test_closing_twice_from_two_threads_and_after_a_fork_is_fine(numbers):
    loader = lf.Loader(numbers, 8, num_workers=2)
    next(iter(loader))
    threads = [threading.Thread(target=loader.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loader.close(timeout=0)
    assert "closed" in repr(loader)
    assert os.getpid()
