"""The stores under test; apart from the engines, whose contract needs neither Redis nor a signature."""

from tests.support.stores import build, redis_url, store  # noqa: F401 - fixtures
