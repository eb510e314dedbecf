"""Clients of other machines over HTTP and WebSockets: bounded in time and size, with retries."""

from tandem.remote.breaker import Breaker
from tandem.remote.endpoint import Endpoint, Retries, as_body, as_json, ask_again, patient_endpoint
from tandem.remote.exchange import JSON, Limits, Reply, check_address, is_address
from tandem.remote.faults import (
    BadReply,
    Late,
    LeftAlone,
    Rejected,
    RemoteError,
    Unreachable,
    Unwell,
)
from tandem.remote.session import Session, SessionLimits, Sessions

__all__ = [
    "JSON",
    "BadReply",
    "Breaker",
    "Endpoint",
    "Late",
    "LeftAlone",
    "Limits",
    "Rejected",
    "RemoteError",
    "Reply",
    "Retries",
    "Session",
    "SessionLimits",
    "Sessions",
    "Unreachable",
    "Unwell",
    "as_body",
    "as_json",
    "ask_again",
    "check_address",
    "is_address",
    "patient_endpoint",
]
