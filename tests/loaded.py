"""The policy of a configuration with its weights."""

from tandem.config import build
from tandem.policies.request import Request


def request_of(cfg, needs=frozenset()):
    """A request to sample as configured and to fill `needs`."""
    return Request(sampling=build(cfg.rollout), needs=needs)


def load_configured(cfg, needs=frozenset()):
    policy = build(cfg.model)
    policy.load(request_of(cfg, needs))
    return policy
