"""A store one of whose answers is late: it is asked a second time, and nobody waits for the first answer."""

import threading

import pytest

import lossfeed as lf
from test_store_faults import right, tar
from web_double import Web


class Late:
    """Answers for one shard. The answer to the `nth` request for a part of it comes when the part was asked for once more,
    or after `seconds`."""

    def __init__(self, body, nth, seconds):
        self.body, self.nth, self.seconds = body, nth, seconds
        self.asked = []
        self.lock, self.again, self.overtaken = threading.Lock(), threading.Event(), None

    def __call__(self, request, _):
        headers = {"ETag": '"1"'}
        if request.range is None:
            return 200, self.body, headers
        with self.lock:
            self.asked.append(request.range)
            late = len(self.asked) == self.nth
            if len(self.asked) > self.nth and request.range == self.asked[self.nth - 1]:
                self.again.set()
        if late:
            self.overtaken = self.again.wait(self.seconds)
        start, stop = (int(end) for end in request.range.removeprefix("bytes=").split("-"))
        part = self.body[start : stop + 1]
        return 206, part, {**headers, "Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(self.body)}"}


@pytest.mark.parametrize("hedge", [True, False])
def test_a_late_answer_is_overtaken_unless_nothing_is_to_be_asked_twice(hedge):
    late = Late(tar(0, 400), nth=200, seconds=30 if hedge else 1)
    with Web(answers={"/x.tar": late}) as web:
        data = lf.open(web.url + "/x.tar", coalesce=False, hedge=hedge)
        right(data)
    assert late.overtaken is hedge
    assert len(late.asked) > 400
