"""A trial in an open swarm: when there is one, what it changes, and how far the journal says it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.support.records import finished, opened

from sapo_desktop.dashboard.screens.swarm.screen import on_trial
from sapo_desktop.dashboard.state import DashboardState, apply_event
from sapo_desktop.services.swarms import membership, trial
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event
from sapo_swarm.node.journal import Journal
from sapo_swarm.protocol.receive import AcceptanceRules
from sapo_swarm.resolve_run import resolve_run_config
from sapo_swarm.tasks.catalogue import PRESETS, STRICT_PRESETS
from sapo_swarm.types import RewardRule

OPEN = "sapo://127.0.0.1:7361/#s=" + "b" * 16
INVITED = "sapo://127.0.0.1:7361/#t=" + "a" * 32 + "&s=" + "c" * 16


def session(name: str, round_: int = 0) -> Event:
    return msgspec.structs.replace(opened(round_), trial=name, mode="swarm")


def rounds(first: int, count: int, external: int = 1) -> list[Event]:
    return [msgspec.structs.replace(finished(first + n), external_groups=external) for n in range(count)]


def test_an_address_without_a_token_is_for_trial_an_invite_is_not(tmp_path: Path) -> None:
    path = tmp_path / "invite"
    membership.save_invite(OPEN, path)
    assert trial.find_trial(path, "b" * 16) is not None
    assert trial.find_trial(path, "c" * 16) is None
    membership.save_invite(INVITED, path)
    assert trial.find_trial(path, "c" * 16) is None
    membership.forget_invite(path)
    membership.save_invite(INVITED, path, listed=True)
    assert trial.find_trial(path, "c" * 16) is not None


def test_joining_again_where_one_stayed_is_no_new_trial(tmp_path: Path) -> None:
    path = tmp_path / "invite"
    membership.save_invite(OPEN, path)
    trial.confirm_trial(path, "b" * 16)
    membership.save_invite(OPEN, path)
    assert trial.find_trial(path, "b" * 16) is None
    assert not trial.begin_once(path, "b" * 16)
    membership.forget_invite(path)
    assert trial.begin_once(path, "b" * 16)
    assert trial.find_trial(path, "b" * 16) is not None


def test_forgetting_the_invite_forgets_the_trial(tmp_path: Path) -> None:
    path = tmp_path / "invite"
    membership.save_invite(OPEN, path)
    membership.forget_invite(path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_trial_file_is_a_trial(tmp_path: Path) -> None:
    path = tmp_path / "invite"
    for damage in (b"", b"\xff", b'{"swarm": 1}'):
        (tmp_path / "trial").write_bytes(damage)
        assert trial.find_trial(path, "b" * 16) == trial.Trial("b" * 16, 0.0)


def test_a_trial_takes_few_external_groups_in_a_batch_of_the_same_size() -> None:
    asked = RunConfig(local_groups=24, external_groups=8, external_advantages="all", tripwire=0.0)
    few, _ = resolve_run_config(asked, membership="trial")
    assert (few.local_groups, few.external_groups) == (30, 2)
    assert (few.external_advantages, few.tripwire) == ("positive", 0.25)
    fewer, _ = resolve_run_config(RunConfig(local_groups=4, external_groups=1), membership="trial")
    assert fewer.external_groups == 1
    nothing, _ = resolve_run_config(RunConfig(local_groups=4), None, {"external_groups": 0}, "trial")
    assert (nothing.local_groups, nothing.external_groups) == (4, 0), "a typed 0 holds on trial too"


def test_a_trial_is_stricter_in_every_rule_and_never_softer() -> None:
    own = frozenset({("t", "g")})
    mine = AcceptanceRules(rule=RewardRule(partial=True, contrast=4), own=own, presets=PRESETS, logprob_floor=-2.0)
    strict = trial.trial_rules(mine)
    assert strict.rule == RewardRule(partial=False, contrast=4)
    assert (strict.own, strict.presets) == (frozenset(), STRICT_PRESETS)
    assert (strict.logprob_floor, strict.length_factor, strict.max_age_s) == (-2.0, 2.0, 900.0)


def test_the_journal_counts_a_trial_over_restarts_and_a_second_one_from_nothing() -> None:
    events = [session(""), *rounds(0, 5), session("a-1", 5), *rounds(5, 30), session("a-1", 35), *rounds(35, 19)]
    found = trial.progress_from_events(events)
    assert (found.rounds, found.external, found.batches, found.asks) == (49, 49, 441, False)
    assert found.after(finished(54)).asks
    assert trial.progress_from_events([*events, session("a-2", 54)]).rounds == 0
    assert not trial.progress_from_events([*events, session("", 54), *rounds(54, 9)]).name


def test_a_node_on_trial_that_restarts_after_3000_rounds_does_not_ask_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.append([session("a-0"), *rounds(0, 60), session("a-1", 60), *rounds(60, 3000)])
    known = trial.progress_from_journal(journal, "a-1")
    assert (known.rounds, known.external, known.batches) == (3000, 3000, 27_000)
    asked = trial.TrialEndPrompt(known)
    assert not any(asked.after(event) for event in (session("a-1", 3060), *rounds(3060, 100)))
    assert trial.progress_from_journal(journal, "a-2") == trial.TrialProgress(), "another trial begins from nothing"
    journal.close()


def test_a_node_without_a_screen_asks_once() -> None:
    asked = trial.TrialEndPrompt(trial.progress_from_events([session("a-1"), *rounds(0, 40)]))
    said = [line for event in (session("a-1", 40), *rounds(40, 30)) if (line := asked.after(event))]
    assert said == [
        "50 rounds of the trial are done: 50 of 450 groups came from others (11 %). sapo-desktop stay, or sapo-desktop leave"
    ]


def test_the_screen_says_how_far_it_is_and_then_asks() -> None:
    state = DashboardState()
    for event in (session("a-1"), *rounds(0, 3)):
        state = apply_event(state, event)
    assert on_trial(state) == ("Trial, 3 of 50 rounds: strict rules, 2 external groups at most",)
    for event in rounds(3, 47):
        state = apply_event(state, event)
    done = on_trial(state)
    assert done[0].startswith("Trial, 50 rounds done: 50 of 450 groups came from others")
    assert done[1].startswith("Stay? s stays")
    assert on_trial(apply_event(state, session("", 50))) == ()
