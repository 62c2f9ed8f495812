"""The update log: what is in it is whole, belongs to its checkpoint, and takes the same step again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sapo_backends.base import LoadRequest, PolicyUpdate, TokenSequence, TrainSample
from sapo_backends.fake import FakeEngine
from sapo_swarm.node.resume_log import LoggedUpdate, ResumeHeader, UpdateLog, make_logged_update

HEADER = ResumeHeader(5, "a" * 64, 0)
POLICY = PolicyUpdate(learning_rate=1e-3, epochs=2)


def batch(seed: int) -> list[TrainSample]:
    rng = np.random.default_rng(seed)
    prompts = [tuple(map(int, rng.integers(5, 90, 12))) for _ in range(2)]
    samples = [
        TrainSample(prompts[i % 2], tuple(map(int, rng.integers(5, 90, 6))), float(rng.normal()), i == 3, (-1.0,) * 6)
        for i in range(4)
    ]
    return [*samples[:3], replace(samples[3], loss_mask=(True, True, False, False, True, True))]


def record(round_: int) -> LoggedUpdate:
    return make_logged_update(round_, round_, POLICY, batch(round_), [b"{}"], ["bf"])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    made = UpdateLog(tmp_path)
    made.start(HEADER)
    yield made
    made.close()


def test_records_come_back_as_they_were_with_each_prompt_stored_once(log: UpdateLog) -> None:
    written = [record(5), record(6)]
    for update in written:
        log.append(update)
    assert log.read(HEADER) == written
    assert written[0].batch() == batch(5)
    assert len(written[0].prompts) == 2


def test_a_log_written_without_loss_masks_is_read(log: UpdateLog) -> None:
    update = record(5)
    short = [list(msgspec.structs.astuple(sample))[:6] for sample in update.samples]
    plain = [*msgspec.structs.astuple(update)[:4], short, update.events, update.solved]
    log._write(msgspec.msgpack.encode(plain))
    assert log.read(HEADER)[0].batch() == [replace(sample, loss_mask=None) for sample in batch(5)]


def test_a_torn_record_is_none_and_what_is_before_it_counts(log: UpdateLog, tmp_path: Path) -> None:
    log.append(record(5))
    whole = (tmp_path / "after-000005.log").read_bytes()
    log.append(record(6))
    log.close()
    raw = (tmp_path / "after-000005.log").read_bytes()
    for cut in (len(whole) + 3, len(whole) + 20, len(raw) - 1):
        (tmp_path / "after-000005.log").write_bytes(raw[:cut])
        assert [u.round for u in log.read(HEADER)] == [5]
    (tmp_path / "after-000005.log").write_bytes(raw[: len(whole) + 30] + b"?" + raw[len(whole) + 31 :])
    assert [u.round for u in log.read(HEADER)] == [5]


def test_a_log_whose_disk_is_away_for_one_write_takes_the_same_round_when_it_is_back(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    folder, away = tmp_path / "checkpoints", tmp_path / "away"
    folder.mkdir()
    log = UpdateLog(folder)
    log.start(HEADER)
    log.append(record(5))
    size, limits = log.bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    folder.rename(away)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.append(record(6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(FileNotFoundError):
        log.append(record(6))
    away.rename(folder)
    log.append(record(6))
    log.close()
    assert log.read(HEADER) == [record(5), record(6)]


def test_a_log_of_other_weights_or_with_a_gap_is_not_used(log: UpdateLog) -> None:
    log.append(record(5))
    log.append(record(7))
    assert [u.round for u in log.read(HEADER)] == [5]
    assert log.read(ResumeHeader(5, "b" * 64, 0)) == []
    assert log.read(ResumeHeader(5, "a" * 64, 1)) == []
    assert log.read(ResumeHeader(4, "a" * 64, 0)) == []


def test_a_new_checkpoint_starts_a_new_log_and_the_old_one_goes(log: UpdateLog, tmp_path: Path) -> None:
    log.append(record(5))
    log.start(ResumeHeader(6, "b" * 64, 0))
    assert [p.name for p in tmp_path.iterdir()] == ["after-000006.log"]


def test_logged_updates_lead_to_the_same_weights_bit_for_bit(log: UpdateLog) -> None:
    first, second = FakeEngine(LoadRequest("fake")), FakeEngine(LoadRequest("fake"))
    for number in (5, 6, 7):
        first.update(batch(number), POLICY, number)
        log.append(record(number))
    for update in log.read(HEADER):
        assert update.policy is not None
        second.update(update.batch(), update.policy, update.seed)
    asked = [TokenSequence(s.prompt, s.completion) for s in batch(1)]
    assert first.logprobs(asked) == second.logprobs(asked)
