"""The pause between two attempts of a remote call, on a machine too busy to keep it."""

import time

import pytest
from faulty_server import says, serving

from tandem.remote import Endpoint, Limits, Retries, Unwell


def test_a_pause_that_oversleeps_the_deadline_leaves_the_fault_before_it(monkeypatch):
    """After the pause the deadline of the call has passed."""
    limits = Limits(connect=1, timeout=9, deadline=1, max_reply_bytes=1 << 20)
    retries, asleep = Retries(count=3, wait=0.01, longest=0.02), time.sleep
    monkeypatch.setattr("tandem.remote.endpoint.time.sleep", lambda pause: asleep(pause + 1.1))
    with serving() as server:
        server.behaviour = says("", 503)
        endpoint = Endpoint(server.url, where="reward.x", limits=limits, retries=retries)
        with pytest.raises(Unwell):
            endpoint.post("/score", b"{}")
        assert len(server.seen) == 1
