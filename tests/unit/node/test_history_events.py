"""The events that tell a model's history: readable from old journals, and whole when written today."""

from __future__ import annotations

from sapo_swarm.events import CheckpointSaved, RunStarted, decode_event, encode_event

OLD = (
    b'{"kind":"run_started","run_id":"r1","mode":"silo","model":"fake","backend":"fake","device":"cpu",'
    b'"precision":"float64","method":"full","parameters":1,"tasks":["bf"],"algorithm":"grpo","group_size":8,'
    b'"own_groups":8,"external_groups":0,"round":3,"rounds_planned":0,"seed":0,"versions":{}}'
)


def test_an_opening_from_before_models_had_names_is_still_read() -> None:
    event = decode_event(OLD)
    assert isinstance(event, RunStarted)
    assert (event.round, event.name, event.base, event.changed, event.weights) == (3, "", "", (), "")


def test_a_link_of_the_hash_chain_comes_back_as_it_was_written() -> None:
    saved = CheckpointSaved(round=7, weights="b" * 64, parent="a" * 64, optimizer=True, bytes=62, reason="time")
    assert decode_event(encode_event(saved)) == saved
    assert b'"kind":"checkpoint"' in encode_event(saved)
