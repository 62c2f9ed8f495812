"""The stores under test. The contract of the engines needs neither Redis nor signatures, so it does not load these."""

from tests.support.stores import build, redis_url, store  # noqa: F401 - fixtures
