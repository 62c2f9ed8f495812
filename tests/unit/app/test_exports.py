"""The pure parts of an export: the card, the Modelfile, the comparison of answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from tests.benchmarks.shapes import SHAPES, write_model
from tests.support.records import opened

from sapo_backends.checkpoints.gguf_write import gguf_tokenizer, write_gguf
from sapo_backends.checkpoints.locate import bundled_model_folder
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_desktop.commands.models.export import lm_studio_target
from sapo_desktop.errors import UsageError
from sapo_desktop.services.bases.fetching import licence_of
from sapo_desktop.services.models.exports.card import ModelCardRecord, record_of, render_model_card
from sapo_desktop.services.models.exports.export import (
    LIBRARIES,
    ExportSource,
    compare_greedy_answers,
    default_target,
    loading_instructions,
    require_empty,
    unfinished,
)
from sapo_desktop.services.models.exports.foreign import PACKAGES, answer_with_library
from sapo_desktop.services.models.exports.formats import FORMATS, ExportPlan
from sapo_desktop.services.models.exports.job import AskedQuestion, LibraryMissing, ReadJob, ReadResult
from sapo_desktop.services.models.exports.modelfile import render_modelfile
from sapo_desktop.services.models.exports.writing import require_quantised_base
from sapo_desktop.services.models.shelf.history import load_history
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, ExternalSwitched, GreedyScore, TaskScore
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.training_count import TrainingCount

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def evaluated(round_: int, pass_at_1: float, delta: float | None = None, permuted: float = 0.0) -> Evaluated:
    """One task, a hundred questions."""
    low, high = pass_at_1 - 0.05, pass_at_1 + 0.05
    task = TaskScore(
        "basic_arithmetic", 100, pass_at_1, low, high, 1.0, 0.0, permuted, base=None if delta is None else 0.4
    )
    ends = (None, None) if delta is None else (delta - 0.02, delta + 0.02)
    return Evaluated(
        round=round_,
        temperature=1.0,
        items=100,
        pass_at_1=pass_at_1,
        low=low,
        high=high,
        delta=delta,
        delta_low=ends[0],
        delta_high=ends[1],
        tasks=(task,),
        seconds=1.0,
    )


def written(**more: object) -> str:
    """A card with these facts."""
    return render_model_card(ModelCardRecord("my model", "owner/name", **more), "hf", "Load it.\n", "Checked.")  # type: ignore[arg-type]


def test_the_card_tells_scores_with_intervals_beside_the_base() -> None:
    """And the paired change, with no gain claimed where the interval holds 0."""
    gained = written(held_out=evaluated(8, 0.5, delta=0.1), trained=TrainingCount(0, 8))
    assert "| basic\\_arithmetic | 100 | 40.0 % (30.9 to 49.8) | 50.0 % (45.0 to 55.0) |" in gained
    assert "+10.0 points against the base (95 %: +8.0 to +12.0)." in gained
    greedy = GreedyScore(100, 0.9, 0.8, 0.95, 0.3, 0.2, 0.4)
    chat = written(held_out=msgspec.structs.replace(evaluated(8, 0.5, delta=0.1), greedy=greedy))
    assert "At temperature 0, as most chats answer: 90.0 % (95 %: 80.0 to 95.0), the base 60.0 %." in chat
    nothing = written(held_out=evaluated(8, 0.41, delta=0.01))
    assert "+1.0 points against the base (95 %: -1.0 to +3.0): no measurable change." in nothing
    assert "answer-only shortcut" not in gained
    assert "answer-only shortcut" in written(held_out=evaluated(8, 0.5, permuted=0.4))


def test_a_card_and_a_modelfile_show_how_the_task_asked_and_a_whole_message_to_try(tmp_path: Path) -> None:
    """Who asks in other words asks something that the model was not trained on."""
    wording = "Sort this message into one of these teams: sales, repair.\n\n{message}\n\nReply with the team only."
    asked = AskedQuestion("bikes", wording, wording.replace("{message}", "The bell is loose."))
    card = written(asked=(asked,), tasks=("bikes",))
    assert "\n\n    Sort this message into one of these teams: sales, repair.\n\n    {message}\n" in card
    assert "\n    The bell is loose.\n\n    Reply with the team only.\n" in card
    assert "take it out before you publish this card" in card
    text = render_modelfile(template_folder(tmp_path, CHATML), "m.gguf", 1024, "", asked=[asked])
    assert "\n#   Sort this message into one of these teams: sales, repair.\n#   \n#   {message}\n" in text
    built_in = written(asked=(AskedQuestion("bf", "", "Say {}."),))
    assert "A question as it was asked in training:\n\n    Say {}.\n" in built_in


def test_an_adapter_goes_into_a_files_codes_without_llama_cpp_and_rounding_names_what_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapo_backends.llamacpp_backend.is_here", lambda module: False)
    require_quantised_base(tmp_path / "own.gguf", merges=True)
    with pytest.raises(
        UsageError, match=r"All of its weights were trained, .*llama-cpp-python.*Without it: --quant q8_0"
    ):
        require_quantised_base(tmp_path / "own.gguf", merges=False)
    with pytest.raises(UsageError, match="made from a GGUF file"):
        require_quantised_base(None, merges=True)


def test_a_model_that_nobody_evaluated_says_so() -> None:
    """No figure is invented, and what it is not is told all the same."""
    text = written()
    assert "It has not been measured on held-out questions since it was trained.\n" in text
    assert "What it is not" in text
    assert "look it up (https://huggingface.co/owner/name)" in text
    assert "license:" not in text
    assert "base_model: owner/name" in text


def test_a_model_that_only_imitated_examples_is_no_work_of_reinforcement_learning() -> None:
    """One that practised afterwards is both."""
    imitated = written(trained=TrainingCount(24), tasks=("mails",))
    assert "fine-tuned on verified right answers on the task mails" in imitated
    assert "in 24 steps of imitating right answers\n" in imitated
    assert "reinforcement" not in imitated
    both = written(trained=TrainingCount(24, 6), algorithm="grpo")
    assert "fine-tuned on verified right answers and post-trained by reinforcement learning" in both
    assert "in 24 steps of imitating right answers, then 6 rounds of practice by grpo on its own rollouts" in both
    assert "tags: [reinforcement-learning, rlvr, sapo-desktop]" in both


@pytest.mark.parametrize(
    ("steps", "rounds", "name"),
    [
        (30, 0, "examples-000030-gguf-same"),
        (16, 63, "examples-000016-rounds-000063-gguf-same"),
        (0, 63, "round-000063-gguf-same"),
    ],
)
def test_the_folder_of_an_export_is_named_by_its_examples_and_its_rounds(steps: int, rounds: int, name: str) -> None:
    """A checkpoint's name counts both together."""
    record = ModelCardRecord("kim", "starter", trained=TrainingCount(steps, rounds))
    source = ExportSource(RunConfig(), Path(f"round-{steps + rounds:06d}"), record)
    assert default_target(Path("kim"), source, "gguf-same") == Path("kim/exports") / name
    assert default_target(Path("kim"), replace(source, checkpoint=None), "hf").name == "base-hf"


def test_names_and_folders_become_plain_text() -> None:
    """A name is no markdown, no YAML and no control sequence, and nobody's folders are told."""
    record = ModelCardRecord("[x](http://y)\n---\n\x1b[2J# big", "/home/somebody/secret/base", tasks=("<b>",))
    text = render_model_card(record, "gguf", loading_instructions(record, ExportPlan("gguf", Path("x"))), "")
    assert "secret" not in text
    assert "\x1b" not in text
    assert "\\[x\\](http://y) --- " in text
    assert text.count("\n---\n") == 1  # the end of the front matter
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert re.fullmatch(r"x-http-y-+2J-big", record.slug)


@pytest.mark.parametrize("kind", list(FORMATS))
def test_every_format_says_how_it_is_loaded(kind: str) -> None:
    """Each library has a name for people and a package to ask for."""
    record = ModelCardRecord("my model", "owner/name")
    assert loading_instructions(record, ExportPlan(kind, Path("x"))).startswith("```")  # type: ignore[arg-type]
    assert FORMATS[kind].library in LIBRARIES  # type: ignore[index]
    assert set(PACKAGES) == set(LIBRARIES)


def test_an_adapter_on_a_base_that_has_no_name_on_the_hub_leaves_the_folder_to_be_filled_in(tmp_path: Path) -> None:
    plan = ExportPlan("adapter", Path("x"))
    assert 'from_pretrained("owner/name")\n' in loading_instructions(ModelCardRecord("mine", "owner/name"), plan)
    for base in ("starter", str(tmp_path)):
        text = loading_instructions(ModelCardRecord("mine", base), plan)
        assert f'from_pretrained("path/to/{Path(base).name}")  # adapter_config.json says where it lay\n' in text


def test_the_licence_is_what_the_base_states_for_itself(tmp_path: Path) -> None:
    """The front matter of its card, else a licence file, else unknown; text further down is no statement."""
    assert licence_of("starter", tmp_path) == "apache-2.0"
    assert licence_of("x", tmp_path) == "unknown"
    (tmp_path / "LICENSE").write_text("Do what you like.")
    assert licence_of("x", tmp_path) == "other"
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: MIT\n---\n# Model\n")
    assert licence_of("x", tmp_path) == "mit"
    (tmp_path / "README.md").write_text("# Model\nlicense: mit\n")
    assert licence_of("x", tmp_path) == "other"


def template_folder(folder: Path, template: str) -> Path:
    """The starter's tokenizer with another chat template."""
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        (folder / name).write_bytes((bundled_model_folder("starter-1m") / name).read_bytes())
    settings = json.loads((bundled_model_folder("starter-1m") / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    return folder


def test_a_modelfile_says_the_chat_template_in_ollamas_words(tmp_path: Path) -> None:
    """ChatML with a system prompt: every literal piece at its place, the end token as a stop."""
    text = render_modelfile(template_folder(tmp_path, CHATML), "m.gguf", 1024, "Think.")
    assert (
        'TEMPLATE """{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n' in text
    )
    assert '{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"""' in text
    assert text.startswith('FROM ./m.gguf\nPARAMETER num_ctx 1024\nPARAMETER stop "<|im_end|>"\n')
    assert text.endswith('SYSTEM """Think."""\n')


def test_exports_end_a_turn_as_the_chat_template_does(tmp_path: Path) -> None:
    """Llama 3 names another end token first, and its template begins with a token that stands there once."""
    folder = template_folder(
        tmp_path, "{{ bos_token }}" + CHATML.replace("%}<|im_start|>{{", "if m.role != 'system' %}<|im_start|>{{", 1)
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|endoftext|>"}))
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert '{{ .Response }}<|im_end|>"""' in render_modelfile(folder, "m.gguf", 1024, "")
    assert gguf_tokenizer(folder, 1024).eos == 2


def test_the_card_of_a_judged_model_says_that_nothing_was_verified() -> None:
    verified, judged = (written(held_out=evaluated(8, 0.5), judged=yes) for yes in (False, True))
    assert "judge" not in verified
    assert "rlvr" in verified
    for word in ("verifiable", "Strict pass@1", "right final answers", "rlvr"):
        assert word in verified
        assert word not in judged
    assert "post-trained by reinforcement learning with the verdicts of a judge model on" in judged
    assert "Judged good at temperature 1 on held-out questions" in judged
    assert "A judge can be fooled" in judged


def test_the_card_says_the_system_prompt_as_text_whatever_is_in_it() -> None:
    assert "system prompt" not in written()
    text = written(system="Reply so:\n```\n# {}\n\x1b[2J")
    assert "begin every conversation with it:\n\n    Reply so:\n    ```\n    # {}\n    ·[2J\n" in text


def test_a_system_prompt_that_a_modelfile_cannot_hold_is_named_and_where_there_is_none_none_is(tmp_path: Path) -> None:
    folder = template_folder(tmp_path, CHATML)
    assert render_modelfile(folder, "m.gguf", 1024, 'Say """.').endswith("\n# README.md holds its system prompt.\n")
    assert "SYSTEM" not in render_modelfile(folder, "m.gguf", 1024, "")


def test_a_template_without_a_system_prompt_gets_none() -> None:
    """The starter's leaves it out: it was trained on nothing else."""
    text = render_modelfile(bundled_model_folder("starter"), "m.gguf", 1024, "Think.")
    assert "System" not in text
    assert "SYSTEM" not in text
    assert "{{ .Prompt }}" in text


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role != 'system' %}Be good.{% endif %}" + CHATML,  # a default system prompt
        "{% raw %}{{ x }}{% endraw %}" + CHATML,  # Go's own brackets
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",  # says everything twice
    ],
)
def test_what_cannot_be_said_is_left_to_ollama(tmp_path: Path, template: str) -> None:
    """Better no template than a wrong one."""
    text = render_modelfile(template_folder(tmp_path, template), "m.gguf", 1024, "Think.")
    assert "TEMPLATE" not in text
    assert "# Ollama recognises" in text


def test_agreement_counts_prompts_answers_and_the_way_to_the_first_other_token() -> None:
    """And only a lossless format is held to identical answers."""
    ours = [([1], [5, 6, 7, 8]), ([2], [5]), ([3], [])]
    same = compare_greedy_answers("peft", "1.0", ours, ours, 64)
    assert (same.prompts, same.identical, same.followed) == (3, 3, 1.0)
    assert same.sentence() == (
        "Loaded again by peft 1.0: 3 of 3 greedy answers identical to the trained model's (at most 64 tokens each)."
    )
    assert not same.wrong(lossless=True)
    other = compare_greedy_answers("llama_cpp", "1.0", ours, [([1], [5, 6, 9]), ([2], [5]), ([3], [])], 64)
    assert (other.identical, other.followed) == (2, pytest.approx((0.5 + 1 + 1) / 3))
    assert "83 % of each followed" in other.sentence()
    assert not other.wrong(lossless=False)
    split = compare_greedy_answers("llama_cpp", "1.0", ours, [([1, 0], [5, 6, 7, 8]), *ours[1:]], 64)
    assert "1 of 3 questions split into other tokens" in split.sentence()
    assert split.wrong(lossless=False)


def test_one_near_tie_of_three_answers_is_no_other_model_and_of_twenty_two_are_none() -> None:
    """Whose answers part at once, or that differ more often, is another one."""
    for answers, others, wrong in ((3, 1, False), (3, 2, True), (20, 2, False), (20, 3, True), (9, 1, False)):
        ours = [([n], [5, 6, 7, 8]) for n in range(answers)]
        theirs = [([n], [5, 6, 7, 9] if n < others else [5, 6, 7, 8]) for n in range(answers)]
        assert compare_greedy_answers("peft", "1.0", ours, theirs, 64).wrong(lossless=True) == wrong
    assert compare_greedy_answers("peft", "1.0", ours[:1], [([0], [9, 9, 9, 9])], 64).wrong(lossless=True)


def test_a_library_without_its_packages_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up by what is installed; nothing is imported for that."""
    monkeypatch.setitem(PACKAGES, "mlx_lm", "no-such-package-at-all")
    job = ReadJob(library="mlx_lm", path="", base="", chats=[], tokens=1)
    assert answer_with_library(job, lambda fraction, phrase: None) == LibraryMissing()


def test_a_record_is_what_the_journal_says_up_to_the_exported_round(tmp_path: Path) -> None:
    """Later evaluations are of other weights."""
    journal = Journal(tmp_path / "journal.db")
    journal.append([evaluated(0, 0.3), evaluated(2, 0.4), evaluated(9, 0.9)])
    journal.close()
    record = record_of("mine", RunConfig(), tmp_path / "journal.db", 5)
    assert (record.trained, record.licence, record.swarm) == (TrainingCount(0, 5), "apache-2.0", False)
    assert record.held_out is not None
    assert record.held_out.pass_at_1 == 0.4
    assert not record.judged
    assert record_of("mine", RunConfig(model="gone/away"), tmp_path / "none.db", 0).licence == "unknown"


def test_the_card_names_a_preset_only_where_a_task_has_one(tmp_path: Path) -> None:
    for task, preset in (("bf", "starter"), ("my_sums", "")):
        assert record_of("mine", RunConfig(tasks=(task,)), tmp_path / "none.db", 0).preset == preset


def test_after_a_rollback_the_card_and_the_list_tell_the_score_of_the_weights_that_are_back(tmp_path: Path) -> None:
    """Of the weights that were taken back it is told where a checkpoint of before the rollback is exported."""
    journal = Journal(tmp_path / "journal.db")
    back = ExternalSwitched(round=50, taking=False, by="tripwire", sentence="They are back.", restored=25)
    journal.append([evaluated(0, 0.2), evaluated(25, 0.4), evaluated(50, 0.1), back])
    for rounds, rate in ((50, 0.4), (60, 0.4), (49, 0.4)):
        found = record_of("mine", RunConfig(), tmp_path / "journal.db", rounds).held_out
        assert found is not None
        assert found.pass_at_1 == rate
    assert [one.pass_at_1 for one in (load_history(tmp_path).held_out,) if one] == [0.4]
    journal.append([evaluated(50, 0.45)])
    journal.close()
    assert [one.pass_at_1 for one in (load_history(tmp_path).held_out,) if one] == [0.45]


def test_a_record_says_that_the_rewards_were_a_judges_and_whose(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.append([msgspec.structs.replace(opened(0), judged=True)])
    journal.close()
    record = record_of("mine", RunConfig(judge_model="a-judge"), tmp_path / "journal.db", 5)
    assert record.judged
    assert record.settings["judge"] == "a-judge"


def test_llama_cpp_reads_the_first_token_that_a_chat_template_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the name that the GGUF file has for it, as its users do."""
    pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    native = import_module("llama_cpp.llama_cpp")
    monkeypatch.setattr(native, "llama_model_default_params", native.llama_model_default_params)  # put back afterwards
    (tmp_path / "model").mkdir()
    folder = write_model(tmp_path / "model", SHAPES["tiny"], architecture="llama")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"bos_token": "<|im_start|>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    write_gguf(folder, tmp_path / "model.gguf", "F32")
    chat = [{"role": "user", "content": "1+1?"}]
    job = ReadJob(library="llama_cpp", path=str(tmp_path / "model.gguf"), base="", chats=[chat], tokens=1)
    found = answer_with_library(job, lambda fraction, phrase: None)
    assert isinstance(found, ReadResult)
    assert [prompt for prompt, _ in found.answers] == [HfTokenizer(folder).encode_chat(chat)]


def test_lm_studios_folder_is_found_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PUBLISHER/MODEL below the folder that LM Studio has; one sentence where there is none, or two places are named."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    with pytest.raises(UsageError, match="LM Studio has no folder of models here"):
        lm_studio_target(None, "kim")
    (tmp_path / ".lmstudio" / "models").mkdir(parents=True)
    assert lm_studio_target(None, "kim") == tmp_path / ".lmstudio" / "models" / "sapo-desktop" / "kim"
    with pytest.raises(UsageError, match="both say where to"):
        lm_studio_target(tmp_path, "kim")
    assert lm_studio_target(None, "kim", "gguf").name == "kim"
    with pytest.raises(UsageError, match="LM Studio gets a GGUF file, not the format mlx"):
        lm_studio_target(None, "kim", "mlx")


def test_an_export_into_an_empty_folder_fills_that_folder_and_no_new_one(tmp_path: Path) -> None:
    """A disk's own folder cannot be removed, and a shell that stands in one would stand nowhere."""
    target = tmp_path / "stick"
    target.mkdir()
    before = target.stat().st_ino
    with unfinished(target) as folder:
        assert folder.parent == target
        (folder / "a").write_text("a", encoding="utf-8")
        (folder / "b").mkdir()
    assert target.stat().st_ino == before
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]


def test_what_a_killed_export_left_in_a_folder_neither_counts_nor_stays(tmp_path: Path) -> None:
    (tmp_path / "out" / ".out.999999999.partial").mkdir(parents=True)
    require_empty(tmp_path / "out")
    with unfinished(tmp_path / "out") as folder:
        (folder / "a").write_text("a", encoding="utf-8")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


@pytest.mark.parametrize("there", [True, False], ids=["in an empty folder", "beside none"])
def test_a_file_that_comes_to_an_exports_place_meanwhile_stays_and_is_said(tmp_path: Path, there: bool) -> None:
    """It was an error of the system in its own words, after the whole work."""
    target = tmp_path / "out"
    if there:
        target.mkdir()

    def write() -> None:
        with unfinished(target) as folder:
            (folder / "a").write_text("new", encoding="utf-8")
            target.mkdir(exist_ok=True)
            (target / "a").write_text("old", encoding="utf-8")

    with pytest.raises(UsageError, match="is there already and not empty"):
        write()
    assert (target / "a").read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in target.iterdir()] == ["a"]


def test_an_empty_file_at_an_exports_place_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(UsageError, match="out is a file, and an export is a folder"):
        require_empty(tmp_path / "out")
