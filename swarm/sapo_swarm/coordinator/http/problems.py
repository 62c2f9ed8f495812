"""Refusals as RFC 9457 problem details with stable codes."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from aiohttp import hdrs, web

from sapo_swarm.protocol.wire import PROBLEM_TYPE, Problem

CODES: dict[str, int] = {
    "malformed": 400,
    "body_mismatch": 400,
    "unknown_node": 401,
    "bad_signature": 401,
    "clock_skew": 401,
    "bad_admin_key": 401,
    "banned": 403,
    "invite_unknown": 403,
    "invite_expired": 403,
    "invite_used_up": 403,
    "invite_revoked": 403,
    "loopback_only": 403,
    "open_swarm": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "replayed": 409,
    "too_large": 413,
    "unsupported_media": 415,
    "expectation_failed": 417,
    "bad_name": 422,
    "protocol": 426,
    "rate_limited": 429,
    "internal": 500,
    "full": 503,
    "waiting": 503,
    "busy": 503,
    "store_down": 503,
    "stopping": 503,
}
"""Every code a client may meet, with its HTTP status."""


class Refusal(Exception):
    """A request that is not served. detail: a sentence for people. retry_after_s: when to come again."""

    def __init__(self, code: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return CODES[self.code]

    def response(self) -> web.Response:
        """The problem details as application/problem+json."""
        problem = Problem(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            retry_after_s=None if self.retry_after_s is None else round(self.retry_after_s, 3),
        )
        headers = {} if self.retry_after_s is None else {"Retry-After": str(math.ceil(self.retry_after_s))}
        return web.Response(
            status=self.status, body=msgspec.json.encode(problem), content_type=PROBLEM_TYPE, headers=headers
        )


def http_refusal(error: web.HTTPException) -> Refusal:
    """What the router refused, in our own words."""
    codes = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 417: "expectation_failed"}
    code = codes.get(error.status, "malformed" if error.status < 500 else "internal")
    details = {
        "not_found": "There is nothing here.",
        "method_not_allowed": f"Allowed: {error.headers.get(hdrs.ALLOW, 'nothing')}.",
    }
    return Refusal(code, details.get(code, error.reason))
