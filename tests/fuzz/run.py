"""Fuzz what strangers may send, for so many seconds: python tests/fuzz/run.py [--seconds 60] [--seed N] [--target NAME]

Mutates the corpus (what the codec writes itself, requests, and what once broke something: tests/fuzz/corpus). Each target may
raise only its own error; anything else, or more than a second of the processor for one input, is a finding: the input is kept
in tests/fuzz/found and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
from tests.fuzz import servers
from tests.support.simulated_nodes import sim_group

from sapo_swarm.events import decode_event
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import BadInvite, Invite, parse_invite
from sapo_swarm.protocol.phrase_watch import extract_phrases
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import (
    GroupBody,
    JoinRequest,
    Problem,
    RoundReply,
    SignedGroup,
    SwarmInfo,
    Upload,
    WireError,
    decode_message,
    encode_message,
    unpack_json,
    unpack_msgpack,
)
from sapo_swarm.scoring.prompts import after_reasoning, before_answer, extract_answer, written_answer

HERE = Path(__file__).resolve().parent
SLOW_S = 1.0
Target = Callable[[bytes], object]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _shown(data: bytes) -> None:
    shown = safe_text(_text(data))
    assert not set(shown) & set("\x00\x07\x08\x1b\x7f\x9b\u202e\u200b"), "a terminal would obey"


def _answered(data: bytes) -> None:
    text = _text(data)
    for answer_format in ("tags", "boxed", "last_line", "json"):
        written_answer(answer_format, after_reasoning(text))
        before_answer(answer_format, text)
    extract_answer(text)
    extract_phrases(text, text[:100])


TARGETS: dict[str, tuple[Target, tuple[type[Exception], ...]]] = {
    "upload": (lambda data: decode_message(data, Upload), (WireError,)),
    "reply": (lambda data: decode_message(data, RoundReply), (WireError,)),
    "group": (lambda data: unpack_msgpack(unpack_msgpack(data, SignedGroup).body, GroupBody), (WireError,)),
    "raw reply": (lambda data: unpack_msgpack(data, RoundReply), (WireError,)),
    "swarm": (lambda data: unpack_json(data, SwarmInfo), (WireError,)),
    "problem": (lambda data: unpack_json(data, Problem), (WireError,)),
    "join": (lambda data: unpack_json(data, JoinRequest), (WireError,)),
    "invite": (lambda data: parse_invite(_text(data)), (BadInvite,)),
    "event": (decode_event, (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)),
    "text": (_shown, ()),
    "completion": (_answered, ()),
    "coordinator": (servers.coordinator, ()),
    "control": (servers.control, ()),
}


def corpus() -> list[bytes]:
    """What is mutated."""
    identity = Identity(bytes(range(32)))
    group = sim_group(identity, "a" * 16, 1, 0, now=1.0)
    upload = Upload(groups=(group, group), want=4, have=(b"12345678",), reward_local=0.5)
    invite = Invite("192.168.1.20", 7361, "a" * 16, "f" * 64, "0" * 32)
    problem = Problem(title="Bad", status=400, code="malformed", detail="x", retry_after_s=1.0)
    own = [encode_message(upload), msgspec.msgpack.encode(upload), msgspec.msgpack.encode(group), str(invite).encode()]
    own += [msgspec.json.encode(problem), b"so <answer>5</answer>", "\x1b]0;x\x07\u202e".encode()]
    return [*own, *servers.requests()] + [path.read_bytes() for path in sorted((HERE / "corpus").iterdir())]


def mutated(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few random changes: bits, bytes, cuts, repeats, splices, interesting numbers."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(7)
        if kind == 0 and made:
            made[at % len(made)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            made[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 2:
            del made[at : at + rng.randrange(1, 50)]
        elif kind == 3:
            made[at:at] = made[at : at + 64] * rng.randrange(1, 40)
        elif kind == 4:
            other = rng.choice(others)
            made[at:] = other[rng.randrange(len(other) + 1) :]
        elif kind == 5:
            made[at:at] = rng.choice(
                [b"\xcb\x7f\xf0" + bytes(6), b"\xcf" + b"\xff" * 8, b"1e999", b"-1", b"\xdd\xff\xff\xff\xff"]
            )
        else:
            made[at:at] = rng.choice([b"\x91", b"[", b"<answer>", b"\x1b["]) * rng.randrange(1, 2000)
    return bytes(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    args = parser.parse_args()
    seed = args.seed or random.SystemRandom().randrange(1, 2**31)
    rng, seeds, end = random.Random(seed), corpus(), time.monotonic() + args.seconds
    names, tried, found = args.target or sorted(TARGETS), 0, 0
    while time.monotonic() < end:
        data = mutated(rng.choice(seeds), rng, seeds)
        for name in names:
            call, errors = TARGETS[name]
            began, why = time.process_time(), ""
            try:
                call(data)
            except errors:
                pass
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            if time.process_time() - began > SLOW_S:
                why = why or "slow"
            tried += 1
            if why:
                found += 1
                folder = HERE / "found"
                folder.mkdir(exist_ok=True)
                path = folder / f"{name.replace(' ', '-')}-{seed}-{tried}"
                path.write_bytes(data)
                print(f"{name}: {why[-400:]} ({path})", file=sys.stderr)
    print(f"{tried} inputs with seed {seed}, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
