"""The engine's warnings arrive in Python's logging, without secrets, and nobody waits for them."""

import logging
import sys
import threading

import numpy as np
import pytest

import lossfeed as lf


class Fails:
    """A dataset of twelve rows, of which some raise."""

    def __init__(self, message, bad=(3,)):
        self.message, self.bad = message, bad

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(self.message)
        return np.full(4, index, np.float32), index


def deliver(message, bad=(3,), workers=1):
    loader = lf.Loader(Fails(message, bad), 4, on_error="skip", num_workers=workers)
    with loader:
        return sum(len(batch) for batch in loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_is_a_warning_of_the_logger_lossfeed(caplog, workers):
    with caplog.at_level(logging.WARNING, "lossfeed"):
        deliver("the disk has 100% of %s eaten", workers=workers)
    (record,) = [r for r in caplog.records if "bad sample" in r.getMessage()]
    assert (record.name, record.levelno) == ("lossfeed", logging.WARNING)
    assert "id=3" in record.getMessage() and "the disk has 100% of %s eaten" in record.getMessage()


def test_secrets_of_addresses_and_characters_that_steer_a_terminal_do_not_arrive(caplog):
    hostile = "GET https://me:sec@ret@store.example/a.png?X-Sig=abcdef and \x1b]0;owned\x07\x9b2J\u202e\nend, s3://b/c.tar"
    with caplog.at_level(logging.WARNING, "lossfeed"):
        deliver(hostile)
    (record,) = [r for r in caplog.records if "bad sample" in r.getMessage()]
    text = record.getMessage()
    assert "https://***@store.example/a.png?***" in text and "s3://b/c.tar" in text and "end" in text
    assert not any(secret in text for secret in ["me:", "sec", "ret@", "abcdef", "X-Sig"])
    assert not any(c in text for c in "\x1b\x07\x9b\u202e\n")


def test_no_stats_page_is_a_warning(caplog, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "lossfeed"):
        deliver("unused", bad=())
    assert any("no stats page" in r.getMessage() for r in caplog.records)


def test_handlers_run_in_the_thread_that_asks_for_batches_and_one_that_raises_costs_no_batch(monkeypatch):
    """A loader thread that ran a handler could wait for the interpreter."""
    seen, unraisable = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraised: unraisable.append(unraised.exc_value))

    class Raises(logging.Handler):
        def emit(self, record):
            seen.append(threading.current_thread())
            raise OSError("the log's disk is full")

    logger, handler = logging.getLogger("lossfeed"), Raises()
    logger.addHandler(handler)
    try:
        assert deliver("bad", bad=(1, 2)) == 10
    finally:
        logger.removeHandler(handler)
    assert seen and set(seen) == {threading.main_thread()}
    assert [str(error) for error in unraisable] == 2 * ["the log's disk is full"]


def test_more_warnings_than_there_is_room_for_are_counted(caplog):
    class Many(Fails):
        def __len__(self):
            return 600

    with caplog.at_level(logging.WARNING, "lossfeed"):
        # One call into the engine makes them all, so that nobody takes any out in between.
        with lf.Loader(Many("gone", range(1, 600)), 600, on_error="skip", num_workers=0) as loader:
            assert [len(batch) for batch in loader] == [1]
    told = [r.getMessage() for r in caplog.records]
    assert sum("bad sample" in text for text in told) == 256
    assert "343 more warnings found no room and are lost" in told
