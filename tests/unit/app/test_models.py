"""Names, identities and changes of models, as pure functions."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fixtures.make_recordings import recording
from tests.support.own_tasks import library_in, sums, write_folder
from tests.support.records import evaluation, finished

from sapo_backends.base import Completion, LoadRequest
from sapo_backends.checkpoints.locate import BUNDLED
from sapo_backends.errors import ModelNotFound
from sapo_backends.fake import FakeEngine
from sapo_desktop import cli
from sapo_desktop.commands.models.chat import _pieces
from sapo_desktop.commands.models.models import _table as table
from sapo_desktop.dashboard.look import UNICODE
from sapo_desktop.dashboard.screens.models.screen import model_details, model_row, model_summary
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.chatting import (
    SHORT,
    PairedChat,
    as_asked,
    marked_questions,
    shown_question,
    too_early,
    undecided_reason,
    without_marks,
    wording_note,
)
from sapo_desktop.services.models.shelf import changes, keeping, store
from sapo_desktop.services.models.shelf.history import TrainingHistory
from sapo_desktop.services.models.shelf.overview import ModelOverview, load_overview
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.models.training import plan_session
from sapo_swarm.config import RunConfig, settings_of_today
from sapo_swarm.events import Evaluated, Event, GreedyScore, RunStarted
from sapo_swarm.node.checkpoints import CheckpointInfo, CheckpointStore
from sapo_swarm.node.journal import Journal
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.tasks.own import library
from sapo_swarm.types import Question, TaskRef

CONFIG = RunConfig(model="starter", trainer="fake", tasks=("bf", "arc_1d"))


def model(config: RunConfig = CONFIG, trained: RunConfig | None = None, swarm: str = "") -> Model:
    record = store.record_of("kim", config)
    record = msgspec.structs.replace(record, trained=trained, swarm=swarm)
    return Model(Path("/nowhere/kim"), record, ())


def changed(**settings: object) -> RunConfig:
    return msgspec.structs.replace(CONFIG, **settings)


@pytest.mark.parametrize("trainer", ["mlx", "llamacpp+torch", "llamacpp+mlx", "torch", "auto"])
def test_a_model_of_torch_goes_on_with_what_reads_its_checkpoints(trainer: str) -> None:
    """Also where torch was never named, but what "auto" meant."""
    resolved = changed(trainer="torch")
    for named in ("auto", "torch"):
        one, wanted = model(changed(trainer=named)), changed(trainer=trainer)
        changes.refuse_other_identity(one, wanted, resolved)
        kept, origins = resolve_run_config(CONFIG, one.config, {"trainer": trainer, "lora_rank": 4})
        assert kept.trainer == (named if trainer == "auto" else trainer)
        assert (kept.lora_rank, origins["lora_rank"]) == (one.config.lora_rank, "model")
    with pytest.raises(UsageError, match="that cannot become fake"):
        changes.refuse_other_identity(one, changed(trainer="fake"), resolved)


@pytest.mark.parametrize("name", ["kim", "a", "Kim-2", "my.model_3", "7b"])
def test_plain_names_are_taken(name: str) -> None:
    assert store.check_model_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "-x", ".x", "x/y", "é", "x" * 41, "base", "Latest", "starter", "nul", "COM1.x", "x."]
)
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        store.check_model_name(name)


@given(st.text(max_size=60))
@example("latest")
@example("Starter")
@example("con." + "x" * store.LONGEST)
def test_what_is_suggested_is_taken_as_a_name(text: str) -> None:
    """Whatever was typed, or a task is called."""
    assert store.check_model_name(store.suggest_model_name(text))


@given(st.lists(st.sampled_from(["kim", "Kim-2", "kim-3", "ada"]), unique=True))
def test_a_free_name_is_free_and_fits(taken: list[str]) -> None:
    found = store.unused_name("kim", taken)
    assert found.lower() not in {name.lower() for name in taken}
    assert len(store.unused_name("x" * store.LONGEST, ["x" * store.LONGEST])) == store.LONGEST


def test_a_first_session_has_nothing_to_compare_with() -> None:
    assert changes.describe_changes(model().record, changed(temperature=0.5), "swarm-id") == ()


def test_settings_that_change_what_is_learned_are_said_and_others_are_not() -> None:
    record = model(trained=CONFIG).record
    now = changed(temperature=0.8, tasks=("bf", "basic_arithmetic"), threads=3, keep_groups=7)
    assert changes.describe_changes(record, now, "") == ("tasks +basic_arithmetic -arc_1d", "temperature 1.0 -> 0.8")
    assert changes.describe_changes(record, changed(threads=3), "") == ()


def test_swarms_are_joined_changed_and_left() -> None:
    alone, member = model(trained=CONFIG).record, model(trained=CONFIG, swarm="one").record
    assert changes.describe_changes(alone, CONFIG, "one", "at home") == ("joined the swarm at home",)
    assert changes.describe_changes(member, CONFIG, "one", "at home") == ()
    assert changes.describe_changes(member, CONFIG, "two", "at work") == ("joined the swarm at work",)
    assert changes.describe_changes(member, CONFIG, "") == ("left the swarm",)


def test_what_auto_meant_is_no_other_identity() -> None:
    meant = changed(method="full", precision="float32")
    changes.refuse_other_identity(model(), changed(method="full"), meant)
    changes.refuse_other_identity(model(), changed(method="auto", trainer="auto"), meant)
    with pytest.raises(
        UsageError, match=r"method full; that cannot become lora.*sapo-desktop new starter-2 --base starter"
    ):
        changes.refuse_other_identity(model(), changed(method="lora"), meant)


def test_a_method_is_kept_and_no_word_is_said_about_weights() -> None:
    meant = changed(method="lora")
    with pytest.raises(UsageError, match=r"cannot become none, which a model keeps\. .*--method none") as refused:
        changes.refuse_other_identity(model(), changed(method="none"), meant)
    assert "weights" not in str(refused.value)


def test_a_mistyped_base_is_named_as_one_and_no_command_is_offered_for_it() -> None:
    before = changed(trainer="torch")
    with pytest.raises(ModelNotFound, match=r"There is no model 'startr'. Did you mean 'starter'"):
        changes.refuse_other_identity(model(before), changed(trainer="torch", model="startr"), before)
    with pytest.raises(UsageError, match=r"cannot become starter-1m"):
        changes.refuse_other_identity(model(before), changed(trainer="torch", model="starter-1m"), before)


def test_a_typed_goal_is_for_one_session_and_a_plan_that_is_behind_holds_no_longer() -> None:
    session = plan_session(model(changed(rounds=50)), CONFIG, {"rounds": 9})
    run, origins = session.resolve("alone")
    assert (run.rounds, session.config.rounds, origins["rounds"]) == (9, 50, "flag")
    run, origins = plan_session(model(changed(rounds=50)), CONFIG, {}).resolve("alone")
    assert (run.rounds, origins["rounds"]) == (50, "model")
    done = RunFacts(rounds_done=50)
    assert resolve_run_config(CONFIG, changed(rounds=50), facts=done)[0].rounds == 0, "a plan that is done"
    assert plan_session(None, CONFIG, {"rounds": 9}).config.rounds == 0


def test_settings_of_an_older_version_are_read_under_the_names_of_today() -> None:
    old = {"own_groups": 4, "temperature": 0.5, "gone_since": True}
    assert settings_of_today(old) == {"local_groups": 4, "temperature": 0.5}


def test_what_a_kill_left_of_a_duplicate_goes_after_an_hour_and_work_in_progress_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    home = Home.find()
    for name in (".partial-old", ".partial-new", "my-model"):
        (home.models / name).mkdir(parents=True)
    old = (home.models / ".partial-old").stat().st_mtime - 7200
    os.utime(home.models / ".partial-old", (old, old))
    keeping.remove_abandoned(home, old + 7300)
    assert sorted(path.name for path in home.models.iterdir()) == [".partial-new", "my-model"]


def spared(folder: Path, config: RunConfig, *events: Evaluated) -> list[str]:
    """Checkpoints of rounds 25 and 50 that are offered for removal after these evaluations."""
    checkpoints = [folder / "checkpoints" / f"round-{number:06d}" for number in (25, 50)]
    for path in checkpoints:
        path.mkdir(parents=True, exist_ok=True)
    with closing(Journal(folder / "journal.db")) as journal:
        journal.append(events)
    offered = keeping.spare_checkpoints(Model(folder, store.record_of("kim", config), tuple(checkpoints)), 0.0)
    return [left.path.name for left in offered]


def test_the_checkpoint_that_a_node_is_writing_is_not_offered_and_what_it_removes_itself_is_no_error(
    tmp_path: Path,
) -> None:
    """Its folder was made an hour ago; a file in it grows."""
    writing, left = (tmp_path / "checkpoints" / f".partial-{number:06d}" for number in (6, 7))
    for path in (writing, left):
        (path / "engine").mkdir(parents=True)
        (path / "engine" / "adapter").write_bytes(b"1234")
        for part in (path, path / "engine", path / "engine" / "adapter"):
            os.utime(part, (1000.0, 1000.0))
    os.utime(writing / "engine" / "adapter", (4500.0, 4500.0))
    offered = keeping.spare_checkpoints(Model(tmp_path, store.record_of("kim", CONFIG), ()), 5000.0)
    assert [(found.path, found.size) for found in offered] == [(left, 4)]
    gone = keeping.RemovableFolder(tmp_path / "checkpoints" / "round-000003", 70, "an older checkpoint")
    assert keeping.remove_folders([gone, *offered]) == 4
    assert writing.exists()
    assert not left.exists()


def test_the_best_checkpoint_of_an_own_task_with_few_held_out_rows_is_not_offered_for_removal(tmp_path: Path) -> None:
    config = changed(tasks=("few",), eval_items=16)
    best, later = (
        msgspec.structs.replace(evaluation(number, rate), items=10) for number, rate in ((25, 0.9), (50, 0.2))
    )
    with library_in(tmp_path / "tasks") as tasks:
        sums(tasks / "few", held_out=10)
        assert spared(tmp_path, config, best, later) == []
    assert spared(tmp_path, config) == [], "the task is gone: nobody knows which one is the best"


def test_the_list_of_models_is_as_wide_as_what_it_tells() -> None:
    """Short names fit in a terminal of 80 columns; a long one moves the columns of all lines."""
    one = ModelOverview(model(), TrainingHistory(), 62_000_000)
    (line,) = table([one])
    assert line == "kim  starter  not measured  0 rounds  0 tokens  62 MB  not trained yet"
    long = ModelOverview(
        Model(Path("/nowhere/x"), store.record_of("a-rather-long-name", CONFIG), ()), TrainingHistory(), 5_000_000
    )
    lines = table([one, long])
    assert [text.index("starter") for text in lines] == [20, 20]
    assert lines[1].endswith("5.0 MB  not trained yet")
    assert len({len(text) for text in lines}) == 1


def test_a_duplicate_is_not_the_model_that_was_trained_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    home = Home.find()
    for name, created in (("adam", 9.0), ("eve", 1.0), ("kim", 3.0)):
        folder = home.models / name
        folder.mkdir(parents=True)
        trained = 5.0 if name != "kim" else 2.0
        record = store.record_of(name, CONFIG)
        store.write_model_record(folder, msgspec.structs.replace(record, created=created, last_trained=trained))
    assert [found.name for found in store.all_models(home)] == ["eve", "adam", "kim"]


def test_once_trained_a_model_says_what_it_was_trained_with_and_before_what_its_settings_are() -> None:
    auto = model(changed(method="auto", trainer="auto"))
    session = next(event for event in recording("silo", 4, 4) if isinstance(event, RunStarted))
    session = msgspec.structs.replace(session, method="lora", backend="torch")
    for sessions, said in (((), "method auto · engine auto · "), ((session,), "method lora · engine torch · ")):
        one = ModelOverview(auto, TrainingHistory(sessions), 0)
        assert said in model_summary(one, False, 100, UNICODE).plain
        assert said in model_details(one, 0.0, 100, UNICODE).plain


def test_a_model_was_trained_last_when_its_newest_round_ended() -> None:
    """Not when its session began, which may be days ago."""
    assert (
        ModelOverview(
            model(), TrainingHistory(rounds=(msgspec.structs.replace(finished(3), time=77.0),)), 0
        ).last_trained
        == 77.0
    )


def test_a_held_out_score_is_told_with_whose_weights_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    kim = store.create_model_folder(Home.find(), "kim", CONFIG)

    def told(*events: Event) -> str:
        with closing(Journal(kim.folder / "journal.db")) as journal:
            journal.append(events)
        assert cli.run_command_line(["models", "show", "kim"]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("held-out"))

    assert told(evaluation(0)) == "held-out    base 50.0 % (95 %: 40.0 to 60.0)"
    assert told(finished(0)) == "held-out    base 50.0 % (95 %: 40.0 to 60.0), before training"
    (line,) = table([load_overview(kim)])
    assert "base 50.0 % (95 %: 40.0 to 60.0)" in line
    assert told(evaluation(1, 0.55)) == "held-out    55.0 % (95 %: 40.0 to 60.0)"
    assert told(finished(1)) == "held-out    55.0 % (95 %: 40.0 to 60.0), after round 1"


@pytest.mark.parametrize("base", BUNDLED)
def test_a_list_with_room_names_each_bundled_base_whole_and_a_narrow_one_leaves_bases_out(base: str) -> None:
    one = ModelOverview(model(changed(model=base)), TrainingHistory(), 0)
    assert f" {base} " in model_row(one, False, 0.0, 98, UNICODE).plain
    assert base not in model_row(one, False, 0.0, 74, UNICODE).plain
    assert f" {base} " in table([one])[0]


def test_a_base_of_the_hub_is_listed_without_its_owner_and_cut_where_it_is_long() -> None:
    for base, shown in (("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"), ("me/" + 30 * "a", 23 * "a" + "…")):
        (line,) = table([ModelOverview(model(changed(model=base)), TrainingHistory(), 0)])
        assert line.startswith(f"kim  {shown}  ")


def test_of_an_own_task_no_preset_is_told() -> None:
    for tasks, told in ((("my_sums",), "my_sums"), (("my_sums", "bf"), "my_sums, bf (starter)")):
        said = model_summary(ModelOverview(model(changed(tasks=tasks)), TrainingHistory(), 0), False, 76, UNICODE).plain
        assert f"tasks     {told}\n" in said


def test_a_duplicate_needs_room_for_what_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exports are left out."""
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    one = store.create_model_folder(home, "kim", CONFIG)
    (one.folder / "exports" / "hf").mkdir(parents=True)
    (one.folder / "exports" / "hf" / "model.safetensors").write_bytes(bytes(10**6))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=10**5))
    assert keeping.duplicate_model(home, one, "eve").name == "eve"


class Talker(FakeEngine):
    """Never ends by itself."""

    written = 0

    def generate(self, prompts, group_size, sampling, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.written += sampling.max_new_tokens
        return [[Completion(tuple(self.tokenizer.encode_text("1")[:1]) * sampling.max_new_tokens, (), "length")]]


def test_the_chat_lets_a_model_write_as_much_as_in_training(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    config = changed(model="fake", trainer="fake", max_new_tokens=300)
    one = store.create_model_folder(home, "kim", config)
    CheckpointStore(one.folder / "checkpoints", 1).write(FakeEngine(LoadRequest("fake")), CheckpointInfo(1, "stop"))
    talker = Talker(LoadRequest("fake"))
    with PairedChat(store.read_model(one.folder)) as chat:
        chat._engines[:] = [talker]
        said = list(chat.answer("1 + 1?", 1.0))
    assert talker.written == 300
    assert [one.cut for one in said[-2:]] == [False, True]


class Brief(FakeEngine):
    """Answers with three tokens."""

    def generate(self, prompts, group_size, sampling, *args, **kwargs):  # type: ignore[no-untyped-def]
        return [[Completion(tuple(self.tokenizer.encode_text("1")[:1]) * 3, (), "stop")]]


def test_a_base_that_does_not_end_is_cut_at_a_multiple_of_the_trained_models_answer_and_at_once_when_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    one = store.create_model_folder(home, "kim", changed(model="fake", trainer="fake", max_new_tokens=600))
    CheckpointStore(one.folder / "checkpoints", 1).write(FakeEngine(LoadRequest("fake")), CheckpointInfo(1, "stop"))
    talker = Talker(LoadRequest("fake"))
    with PairedChat(store.read_model(one.folder)) as chat:
        chat._engines[:] = [talker, Brief(LoadRequest("fake"))]
        said = list(chat.answer("1 + 1?", 1.0))
        assert (said[-1].of, said[-1].cut) == (0, True)
        assert talker.written == SHORT
        _pieces(chat, "1 + 1?", 1.0, stopped=lambda: True)
    first, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["of"] == 0
    assert done == {"done": True}


def test_a_chat_with_weights_from_before_the_newest_training_says_so(tmp_path: Path) -> None:
    """The node had imitated for nineteen steps, and the chat said that nothing was trained."""
    home = Home(tmp_path, tmp_path / "data", tmp_path, tmp_path, tmp_path)
    one = store.create_model_folder(home, "kim", changed(model="fake", trainer="fake"))
    CheckpointStore(one.folder / "checkpoints", 1).write(FakeEngine(LoadRequest("fake")), CheckpointInfo(0, "start"))
    assert "nothing is trained yet" in too_early(store.read_model(one.folder))
    with closing(Journal(one.folder / "journal.db")) as journal:
        journal.append([finished(number) for number in range(19)])
    assert "is not saved yet" in too_early(store.read_model(one.folder))
    CheckpointStore(one.folder / "checkpoints", 1).write(FakeEngine(LoadRequest("fake")), CheckpointInfo(19, "pause"))
    assert "has not been measured yet" in too_early(store.read_model(one.folder))


def test_a_chat_says_when_it_is_too_early_for_the_answers_to_differ() -> None:
    event = msgspec.structs.replace(evaluation(25), delta=0.1, delta_low=-0.1, delta_high=0.3)
    assert "+10.0 points against the base (95 %: -10.0 to +30.0), which may be chance" in undecided_reason(event)
    at_0 = GreedyScore(items=16, pass_at_1=0.9, low=0.8, high=1.0, delta=0.4, delta_low=0.2, delta_high=0.6)
    assert undecided_reason(msgspec.structs.replace(event, greedy=at_0)) == "", "a chat answers greedily"
    assert "has not been measured yet" in undecided_reason(evaluation(0))
    assert "has not been measured yet" in undecided_reason(None)


def test_a_question_of_a_table_is_shown_as_its_row_without_the_instruction(tmp_path: Path) -> None:
    with library_in(tmp_path):
        sums(tmp_path / "sums")
        config = RunConfig(tasks=("sums", "chain_sum"))
        refs = marked_questions(config)
        row = library.load_task("sums").held_out[0]
        question = Question(refs[0], "An instruction that all rows share. " * 40, "0" * 64)
        assert [ref.dataset for ref in refs[:4]] == ["sums", "chain_sum"] * 2, "tasks in turns"
        assert shown_question(question) == row["question"]
        assert without_marks(config) == ""
    long = Question(TaskRef("chain_sum", "default", 1, 0), "a" * 500 + "b" * 500, "0" * 64)
    assert len(shown_question(long)) < 410


def test_a_chat_over_judged_tasks_says_why_nothing_is_marked(tmp_path: Path) -> None:
    with library_in(tmp_path):
        judged = 'extract = "whole"\n[[verifier]]\nkind = "judged"\nrubric = "It is short."\n'
        rows = [{"question": f"Write of {n}."} for n in range(24)]
        write_folder(tmp_path / "poems", judged, rows[:20], rows[20:])
        assert "no single right answer" in without_marks(RunConfig(tasks=("poems",)))


def test_a_text_of_ones_own_is_asked_as_the_rows_of_the_table_were(tmp_path: Path) -> None:
    with library_in(tmp_path):
        toml = 'prompt = "Which colour?\\n{question}"\n[[verifier]]\nkind = "exact"\n'
        rows = [{"question": f"It is {n}.", "answer": "red"} for n in range(24)]
        write_folder(tmp_path / "colours", toml, rows[:20], rows[20:])
        assert as_asked(RunConfig(tasks=("colours",)), "It is dark.") == "Which colour?\nIt is dark."
        assert as_asked(RunConfig(tasks=("colours", "chain_sum")), "It is dark.") == "It is dark."
        assert as_asked(RunConfig(tasks=("gone",)), "It is dark.") == "It is dark."
        assert "in place of {question}. To see it: sapo-desktop tasks show colours" in wording_note(
            RunConfig(tasks=("colours",))
        )
        assert wording_note(RunConfig(tasks=("colours", "chain_sum"))) == wording_note(RunConfig(tasks=("gone",))) == ""


def test_a_task_that_is_gone_or_damaged_takes_only_its_own_held_out_questions_from_a_chat(tmp_path: Path) -> None:
    with library_in(tmp_path):
        sums(tmp_path / "sums")
        damaged = write_folder(tmp_path / "damaged", "this is [ no TOML", [], []).name
        some = RunConfig(tasks=("gone", damaged, "sums"))
        assert {ref.dataset for ref in marked_questions(some)} == {"sums"}
        assert without_marks(some) == ""
        assert "There is no task 'gone'" in without_marks(RunConfig(tasks=("gone",)))
        assert "not valid TOML" in without_marks(RunConfig(tasks=(damaged,)))
