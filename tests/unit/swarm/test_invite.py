"""Invites, addresses and limits."""

from __future__ import annotations

import datetime
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.coordinator.rules import TokenBuckets, add_jitter, next_in_s, prefix_of
from sapo_swarm.protocol.invite import (
    BadInvite,
    Invite,
    is_loopback,
    make_certificate,
    new_swarm_id,
    new_token,
    parse_invite,
    token_hash,
)


def test_a_name_that_only_begins_like_loopback_is_another_machine() -> None:
    assert is_loopback("::1%lo"), "the zone of an IPv6 address does not matter"
    assert not is_loopback("127.0.0.1%x.example.org")


@pytest.mark.parametrize("host", ["192.168.1.20", "::1", "fe80::1", "box.example", "127.0.0.1"])
def test_an_invite_survives_being_pasted(host: str) -> None:
    """IPv6 too."""
    invite = Invite(host, 7361, new_swarm_id(), "ab" * 32, new_token())
    assert parse_invite(f"  {invite}\n") == invite
    assert parse_invite(f"“{invite}”.") == parse_invite(f"'{invite}'") == parse_invite(f"{invite}. ") == invite
    assert invite.token not in repr(invite)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "begins with sapo://"),
        ("https://x/", "begins with sapo://"),
        ("sapo://10.0.0.1:7361/#t=" + "0" * 32, "'s' is missing"),
        ("sapo://10.0.0.1:7361/#s=" + "a" * 16, "this machine only"),
        ("sapo://10.0.0.1:99999/#s=" + "a" * 16, "does not parse"),
        ("sapo://127.0.0.1:1/#s=" + "a" * 16 + "&x=1", "newer than this app"),
        ("sapo://127.0.0.1:1/#s=" + "a" * 16 + "&t=abc", "copy the whole line"),
        ("sapo://[::1", "does not parse"),
        ("sapo://a b:1/#s=" + "a" * 16, "no address has"),
        ("sapo://x/" + "a" * 700, "one short line"),
    ],
)
def test_a_bad_invite_says_what_is_wrong(text: str, sentence: str) -> None:
    """In words for people."""
    with pytest.raises(BadInvite, match=sentence):
        parse_invite(text)


@given(st.text(max_size=200))
def test_any_text_is_an_invite_or_a_sentence(text: str) -> None:
    """Never another error."""
    for candidate in (text, "sapo://" + text):
        try:
            parse_invite(candidate)
        except BadInvite:
            continue


def test_certificates_are_pinned_by_fingerprint_and_tokens_kept_as_hashes() -> None:
    """Two certificates differ; a token's hash does not hold it."""
    now = datetime.datetime.now(datetime.UTC)
    one, two = make_certificate("a" * 16, now), make_certificate("a" * 16, now)
    assert len(one.fingerprint) == 64
    assert one.fingerprint != two.fingerprint
    token = new_token()
    assert token not in token_hash(token)


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", ""),
        ("::1", ""),
        ("", ""),
        ("203.0.113.9:4711", "unknown"),
        ("invalid", "unknown"),
    ],
)
def test_addresses_are_limited_by_prefix(address: str, prefix: str) -> None:
    """/24, /64; loopback is exempt; what a proxy writes that is no address is one network, not an exempt one."""
    assert prefix_of(address) == prefix


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    """Three at once, then one every five seconds; the wait is exact."""
    buckets = TokenBuckets(0.2, 3)
    assert [buckets.take("n", 0.0) for _ in range(4)] == [0, 0, 0, pytest.approx(5.0)]
    assert buckets.take("n", 4.0) == pytest.approx(1.0)
    assert buckets.take("n", 5.0) == 0.0
    assert buckets.take("other", 5.0) == 0.0


def test_buckets_are_bounded_in_number() -> None:
    """The longest unused is forgotten first."""
    buckets = TokenBuckets(1.0, 1, size=2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0.0)
    assert buckets.take("a", 0.0) > 0
    assert buckets.take("b", 0.0) == 0


@given(st.integers(0, 10**6), st.integers())
def test_the_wait_grows_with_the_swarm(nodes: int, seed: int) -> None:
    """At least the floor, about nodes / target, never over an hour."""
    wait = next_in_s(nodes, 400.0, 5.0, random.Random(seed))
    assert max(5.0, 0.9 * nodes / 400) <= wait <= max(6.0, min(3600.0, 1.1 * nodes / 400)) or wait == 3600.0
    assert 2.0 <= add_jitter(2.0, random.Random(seed)) <= 3.0
