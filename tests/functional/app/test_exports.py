"""A trained model leaves the app, and the programs it is for read what was trained. Child processes and libraries are real."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import psutil
import pytest
from tests.contract.conftest import write_model
from tests.support.node_process import environment, sapo
from tests.support.sentencepiece import write_tokenizer

pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("transformers", reason="the torch engine is not installed")

from tests.support.trained_models import random_model, trained

from sapo_desktop.errors import UsageError
from sapo_desktop.services.models.exports import (
    ExportFailed,
    ExportPlan,
    ExportSource,
    Format,
    Quant,
    create_export,
    estimate_export,
    formats_for,
)
from sapo_desktop.services.models.shelf import store

LONG_S = 240
"""For a verb that starts libraries, on a machine with other work."""
TYPE_VERB = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from sapo_desktop.cli import run_command_line
sys.exit(run_command_line(sys.argv[1:]))
"""
"""A child of a background shell would ignore Ctrl-C."""


@pytest.fixture(autouse=True)
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of this process answer few questions, but for the one that takes this back."""
    monkeypatch.setattr(import_module("sapo_desktop.services.models.exports.export"), "QUESTIONS", 4)


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> ExportSource:
    """The smaller bundled model, all weights trained."""
    return trained(tmp_path_factory.mktemp("starter"), "starter-1m", method="full")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ExportSource:
    """A random Llama with a trained adapter and stretched rotary wavelengths."""
    folder = tmp_path_factory.mktemp("llama")
    return trained(folder, str(random_model(folder / "base", "llama")), method="lora")


def left_in(folder: Path) -> list[str]:
    """Everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def pretend(folder: Path, patch: pytest.MonkeyPatch, code: str) -> None:
    """Child processes run this code before anything else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    patch.syspath_prepend(str(folder))


@pytest.mark.parametrize("kind", ["hf", "gguf", "mlx"])
def test_the_library_it_is_for_gives_the_same_greedy_answers(
    starter: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format
) -> None:
    """All of them (a busy machine may not get to the twentieth), and the tokenizer and chat template inside split the
    questions into the same tokens."""
    pytest.importorskip({"hf": "transformers", "gguf": "llama_cpp", "mlx": "mlx_lm"}[kind])
    if kind == "hf":
        monkeypatch.undo()  # as many questions as a person's export
    done = create_export(starter, ExportPlan(kind, tmp_path / "out"))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.identical == done.agreement.answers > 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert done.sentence() in card
    assert "license: apache-2.0" not in card  # the record knows no licence: nobody looked it up
    assert left_in(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["hf", "adapter", "gguf", "mlx"])
def test_a_trained_llama_adapter_means_the_same_in_every_format(
    llama: ExportSource, tmp_path: Path, kind: Format
) -> None:
    """Merged, alone, permuted for llama.cpp, and with the rotary settings where mlx_lm looks for them."""
    pytest.importorskip({"hf": "transformers", "adapter": "peft", "gguf": "llama_cpp", "mlx": "mlx_lm"}[kind])
    done = create_export(llama, ExportPlan(kind, tmp_path / "out"))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers > 0
    # F16 rounds, and random weights have near-ties
    assert done.agreement.identical >= (0.5 if kind == "gguf" else 0.9) * done.agreement.answers
    assert (tmp_path / "out" / "adapter_config.json").exists() == (kind == "adapter")


@pytest.mark.parametrize(("architecture", "way"), [("gemma2", "gemma"), ("phi3", "phi3")])
def test_a_model_whose_tokenizer_is_sentencepiece_leaves_as_gguf(tmp_path: Path, architecture: str, way: str) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "base").mkdir()
    base = write_model(tmp_path / "base", architecture)
    write_tokenizer(base, "what is the answer then, and there or other ", way, size=300)
    done = create_export(trained(tmp_path, str(base), method="lora"), ExportPlan("gguf", tmp_path / "out"))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers > 0


@pytest.mark.parametrize("quant", ["q8_0", "q4_0"])
def test_fewer_bits_are_written_and_their_agreement_is_stated(
    starter: ExportSource, tmp_path: Path, quant: Quant
) -> None:
    """The sentence counts, and nothing is refused: rounding is what was asked for."""
    pytest.importorskip("llama_cpp")
    done = create_export(starter, ExportPlan("gguf", tmp_path / "out", quant))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers > 0
    assert f"{done.agreement.identical} of {done.agreement.answers} greedy answers" in done.sentence()
    assert left_in(tmp_path / "out") == ["Modelfile", "README.md", f"my-model-{quant}.gguf"]
    assert "TEMPLATE" in (tmp_path / "out" / "Modelfile").read_text(encoding="utf-8")
    guess = estimate_export(starter, ExportPlan("gguf", tmp_path / "other", quant))
    assert done.size == pytest.approx(guess.size, rel=0.15)
    assert guess.fits


def test_an_empty_folder_is_taken_what_a_kill_left_goes_and_progress_rises(
    starter: ExportSource, tmp_path: Path
) -> None:
    """Half exports to another place stay."""
    for name in ("out", ".out.999999999.partial", ".other.999999999.partial", ".out.txt"):
        (tmp_path / name).mkdir()
    told: list[tuple[float, str]] = []
    create_export(starter, ExportPlan("hf", tmp_path / "out", verify=False), lambda *step: told.append(step))
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert any("weights" in phrase for _, phrase in told)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert left_in(tmp_path) == [".other.999999999.partial", ".out.txt", "out"]


@pytest.mark.parametrize("phrase", ["starting", "writing Q8_0 weights", "llama-cpp-python answers"])
def test_an_interrupt_leaves_nothing_and_no_process(starter: ExportSource, tmp_path: Path, phrase: str) -> None:
    """Before, while the weights are written, and while they are read again."""
    pytest.importorskip("llama_cpp")

    def stop(_: float, doing: str) -> None:
        if doing.startswith(phrase):
            raise KeyboardInterrupt

    children = set(psutil.Process().children(recursive=True))
    with pytest.raises(KeyboardInterrupt):
        create_export(starter, ExportPlan("gguf", tmp_path / "out", "q8_0"), stop)
    assert left_in(tmp_path) == []
    assert set(psutil.Process().children(recursive=True)) <= children


def test_a_damaged_checkpoint_leaves_nothing(starter: ExportSource, tmp_path: Path) -> None:
    """The message is the engine's own."""
    assert starter.checkpoint is not None
    shutil.copytree(starter.checkpoint, tmp_path / "round-000002")
    (tmp_path / "round-000002" / "engine" / "trained.safetensors").write_bytes(b"short")
    source = ExportSource(starter.config, tmp_path / "round-000002", starter.record)
    with pytest.raises(ExportFailed, match="round-000002"):
        create_export(source, ExportPlan("hf", tmp_path / "out"))
    assert left_in(tmp_path) == ["round-000002"]


def test_what_is_there_already_is_never_written_over(starter: ExportSource, tmp_path: Path) -> None:
    """A full folder and a file are not taken."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for target in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(UsageError, match="--to FOLDER"):
            create_export(starter, ExportPlan("hf", target))
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def test_the_disk_is_asked_first(starter: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started on a disk without room."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**6))
    with pytest.raises(ExportFailed, match=r"needs 3\d MB .* 1\.0 MB are free"):
        create_export(starter, ExportPlan("hf", tmp_path / "out"))
    assert left_in(tmp_path) == []


def test_a_library_that_is_absent_is_said(
    starter: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export is kept: whoever takes it elsewhere knows that nobody tried it."""
    code = (
        "import importlib.metadata as m\nfound = m.version\n"
        "def version(name):\n    if name == 'mlx-lm': raise m.PackageNotFoundError(name)\n    return found(name)\n"
        "m.version = version\n"
    )
    pretend(tmp_path / "site", monkeypatch, code)
    done = create_export(starter, ExportPlan("mlx", tmp_path / "out"))
    assert done.agreement is None
    assert done.sentence().startswith(
        "It is complete, but was not loaded again to check it: mlx_lm is not installed here ("
    )
    assert done.sentence() in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.modules['peft'] = None\n", "peft does not load what was written.*"),
        (
            "import sys, os\nif 'sapo_desktop.services.models.exports.worker' in sys.orig_argv:\n    os.kill(os.getpid(), 9)\n",
            "ended with signal 9",
        ),
    ],
)
def test_what_its_library_cannot_load_is_not_kept(
    llama: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    """Whether the library refuses or the process dies."""
    pytest.importorskip("peft")
    pretend(tmp_path / "site", monkeypatch, code)
    with pytest.raises(ExportFailed, match=message):
        create_export(llama, ExportPlan("adapter", tmp_path / "out"))
    assert left_in(tmp_path) == ["site"]


def test_another_models_answers_are_not_kept(
    starter: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lossless format whose reader gives other tokens is a wrong export, not a footnote."""
    pytest.importorskip("mlx_lm")
    code = "import sapo_desktop.services.models.exports.foreign as f\nf._until_end = lambda *_: [7, 7]\n"
    pretend(tmp_path / "site", monkeypatch, code)
    with pytest.raises(ExportFailed, match=r"0 of \d+ .*another model, so nothing was kept"):
        create_export(starter, ExportPlan("mlx", tmp_path / "out"))
    assert left_in(tmp_path) == ["site"]


def test_formats_and_plans_that_cannot_be_are_refused_before_anything(
    starter: ExportSource, llama: ExportSource
) -> None:
    """An adapter where none was trained, bits where none are dropped, formats that nobody knows."""
    assert formats_for(starter) == ("hf", "gguf", "mlx")
    assert formats_for(llama) == ("hf", "adapter", "gguf", "mlx")
    with pytest.raises(UsageError, match="all of its weights were trained"):
        create_export(starter, ExportPlan("adapter", Path("nowhere")))
    with pytest.raises(UsageError, match="--quant is for gguf"):
        ExportPlan("hf", Path("nowhere"), "q4_0")
    with pytest.raises(UsageError, match="hf, adapter, gguf, mlx"):
        ExportPlan("onnx", Path("nowhere"))  # type: ignore[arg-type]


def test_the_verb_exports_a_run_and_says_how_it_was_checked(tmp_path: Path) -> None:
    """Train, export, train on from the export: as a person types it."""
    node = ("node", "--silo", "--model", "starter-1m", "--rounds", "1", "--local-groups", "2", "--eval-every", "0")
    ran = sapo(tmp_path, *node, "--quiet", timeout=LONG_S)
    assert ran.returncode == 0, ran.stderr
    done = sapo(tmp_path, "export", "--format", "hf", "--to", str(tmp_path / "mine"), timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b(\d+) of \1 greedy answers identical", done.stdout)
    config = json.loads((tmp_path / "mine" / "config.json").read_text(encoding="utf-8"))
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    card = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    assert "in 1 round by grpo on its own rollouts" in card
    again = sapo(tmp_path, "export", "--format", "hf", "--to", str(tmp_path / "mine"), timeout=LONG_S)
    assert again.returncode == 2
    assert "not empty" in again.stderr
    refused = sapo(tmp_path, "export", "--format", "adapter", timeout=LONG_S)
    assert refused.returncode == 2
    assert "no LoRA adapter" in refused.stderr
    quick = sapo(
        tmp_path, "export", "--checkpoint", "base", "--format", "gguf", "--quant", "q8_0", "--no-verify", timeout=LONG_S
    )
    assert quick.returncode == 0, quick.stderr
    assert "base-gguf-q8_0" in quick.stdout
    assert "--no-verify" in quick.stdout


def test_ctrl_c_leaves_nothing(starter: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb ends with 130 and takes its child process, which is what presses the keys here, along."""
    assert starter.checkpoint is not None
    model = tmp_path / "data" / "models" / "a-model"
    shutil.copytree(starter.checkpoint, model / "checkpoints" / starter.checkpoint.name)
    store.write_model_record(model, store.record_of("a-model", starter.config))
    code = (
        "import os, signal, sys\nif 'sapo_desktop.services.models.exports.worker' in sys.orig_argv:\n"
        "    open(os.environ['SAPO_HOME'] + '/pid', 'w').write(str(os.getpid()))\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
    )
    pretend(tmp_path / "site", monkeypatch, code)
    command = [sys.executable, "-c", TYPE_VERB, "export", "--format", "gguf", "--to", str(tmp_path / "to" / "out")]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, timeout=LONG_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"0 % starting\n")
    assert left_in(tmp_path / "to") == []
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
