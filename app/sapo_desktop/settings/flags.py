"""Command-line flags made from the settings schema. A flag that was not typed leaves the setting as the file has it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.settings import SettingField, Settings, format_value, schema_fields, split_lists
from sapo_swarm.config import REASONING_TOKENS, RunConfig
from sapo_swarm.errors import suggest_names

if TYPE_CHECKING:
    from sapo_swarm.resolve_run import RunFacts

ASK_FOR_ROOM = ("model", "tasks", "task_tokens", "thinking")
"""Settings that may need more new tokens."""
Look = Callable[[RunConfig], None]
_METAVARS = {"whole number": "N", "number": "X", "list": "A,B"}


def fetch_nothing(_config: RunConfig) -> None:
    """The default `look`: fetches nothing, so a model that is not on this disk stays unknown."""


def add_run_flags(parser: argparse.ArgumentParser, only: Collection[str] = ()) -> None:
    """Add a flag for every field of RunConfig, or only for those named."""
    group = parser.add_argument_group(
        "the run (what is not given: as the model has it, a new one from the settings file)"
    )
    add_flags(group, (field for field in schema_fields(RunConfig) if not only or field.key in only))


def add_flags(parser: argparse._ActionsContainer, fields: Iterable[SettingField]) -> None:
    """Add a flag for each field; it sets nothing unless it is typed."""
    for field in fields:
        flag, default = f"--{field.key.replace('_', '-')}", format_value(field.default)
        help_text = (f"{field.help} (default: {default})" if default else field.help).replace("%", "%%")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text)
        else:
            metavar = _METAVARS.get(field.kind.partition(",")[0], "TEXT")
            metavar = "{" + field.kind.replace("|", ",") + "}" if field.choices else metavar
            parser.add_argument(flag, default=argparse.SUPPRESS, help=help_text, metavar=metavar)


def typed_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The run's settings that were typed, by name. Raises UsageError."""
    typed = split_lists(
        {k: v for k, v in vars(args).items() if k in RunConfig.__struct_fields__}, schema_fields(RunConfig)
    )
    if "model" in typed:
        typed["model"] = absolute_model(typed["model"])
    checked = settings.settings_from_tables({"run": typed}, "command line", strict=False).run
    return {name: getattr(checked, name) for name in typed}


def run_config(base: Settings, args: argparse.Namespace, look: Look = fetch_nothing) -> RunConfig:
    """The settings of a new model's run, overridden by the typed flags. look: see answer_facts. Raises UsageError,
    UnknownTask, BadTask."""
    typed = typed_settings(args)
    check_config(msgspec.structs.replace(base.run, **typed))
    return propose_run(base.run, look, **typed)


def propose_run(settings: RunConfig, look: Look = fetch_nothing, **chosen: Any) -> RunConfig:
    """The settings of a new model's run where these were chosen. look: see answer_facts. Raises BadTask."""
    from sapo_swarm.resolve_run import resolve_run_config

    facts = answer_facts(msgspec.structs.replace(settings, **chosen), chosen, look)
    return resolve_run_config(settings, flags=chosen, facts=facts)[0]


def answer_facts(
    config: RunConfig, chosen: Collection[str], look: Look = fetch_nothing, model: RunConfig | None = None
) -> RunFacts:
    """What the answers of a run need: of the custom tasks, of task_tokens, and of reasoning if it is on or the model always
    reasons. A model keeps its limit of new tokens unless a change may need more. look: fetches the chat template of a model
    that is not on this disk. Raises BadTask."""
    from sapo_swarm.resolve_run import RunFacts
    from sapo_swarm.tasks import catalogue
    from sapo_swarm.tasks.own import library

    kept = model is not None and all(getattr(model, name) == getattr(config, name) for name in ASK_FOR_ROOM)
    own = [task for task in config.tasks if catalogue.is_own(task)]
    levels = model is None and "tasks" in chosen and own == list(config.tasks)
    levels = levels and any(len(library.task_levels(task)) > 1 for task in own)
    if kept or "max_new_tokens" in chosen:
        return RunFacts(levels=levels)
    needs = [library.load_task(task).spec.max_new_tokens for task in own]
    needs += catalogue.task_tokens(config).values()
    needs += [REASONING_TOKENS] if config.thinking == "on" or _reasons(config, look) else []
    return RunFacts(answer_tokens=max(needs, default=0), levels=levels)


def absolute_model(model: str) -> str:
    """Makes a relative path to a folder or GGUF file absolute, and resolves a model of another program on this
    computer to its path; returns other names unchanged. Raises ModelNotFound if that program has no model of
    that name."""
    from sapo_backends.checkpoints import local_models, locate

    if local_models.is_named(model):
        return str(local_models.path_of(model))
    path = locate.existing_folder(model) or locate.gguf_file(model)
    return model if path is None else str(path.absolute())


def as_kept(model: str) -> str:
    """A base as the settings store it: a model of another program keeps the name that people know. Raises ModelNotFound if
    that program has no model of that name."""
    from sapo_backends.checkpoints import local_models

    path = absolute_model(model)
    return model if local_models.is_named(model) else path


def _reasons(config: RunConfig, look: Look) -> bool:
    """Whether the model's chat template opens a reasoning block; False while the template is not on this disk."""
    from sapo_backends.checkpoints import chat_template, hub_cache, locate, tokenizer
    from sapo_backends.errors import BackendError

    if config.model in locate.BUNDLED:
        return False
    try:
        look(config)
        folder = (
            hub_cache.looked_at(config.model)
            if locate.is_hub_id(config.model)
            else locate.resolve_local_model(config.model)
        )
        if folder is None:
            return False
        settings = tokenizer.read_json(folder / "tokenizer_config.json")
        return chat_template.opens_reasoning(folder, settings, config.thinking)
    except (BackendError, OSError, ValueError):  # loading the model will report what is wrong with it
        return False


def check_config(config: RunConfig) -> None:
    """Check names that the schema cannot. Raises UsageError, BadTask, UnknownTask with the nearest match."""
    from sapo_backends import registry
    from sapo_swarm.algorithms import load_algorithm
    from sapo_swarm.sapo.training_batch import find_strategy
    from sapo_swarm.tasks import catalogue

    if not config.tasks:
        raise UsageError("run.tasks is empty. List tasks with: sapo-desktop tasks")
    for task in config.tasks:
        catalogue.preset_of(task, config.preset)
        catalogue.generator_of(task)  # loads a custom task, so that a fault in it is an error now
    strangers = sorted(catalogue.task_tokens(config).keys() - set(config.tasks))
    try:
        load_algorithm(config.algorithm)
        find_strategy(config.sampling)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if strangers:
        raise UsageError(f"run.task_tokens names {strangers[0]!r}. {suggest_names(strangers[0], config.tasks)}")
    engines = {"auto", *registry.known_backends()}
    unknown = [part for part in config.trainer.split("+") if part not in engines]  # a pair is any two engines
    if config.trainer not in engines and (unknown or config.trainer.count("+") != 1 or "auto" in config.trainer):
        raise UsageError(f"There is no engine {config.trainer!r}. {suggest_names(config.trainer, engines)}")
    _check_place(config)


def _check_place(config: RunConfig) -> None:
    """Raises UsageError for a device or a precision that no engine of the run supports; nothing is known of engines that are
    not installed."""
    from sapo_backends import registry
    from sapo_backends.errors import BackendUnavailable

    engines = []
    for name in registry.NEEDS if config.trainer == "auto" else (config.trainer,):
        with contextlib.suppress(BackendUnavailable):
            engine = registry.get_backend(name)
            engine.check()
            engines.append(engine)
    devices = {"auto", *(device for engine in engines for device in engine.DEVICES)}
    if engines and config.device.partition(":")[0] not in devices:
        raise UsageError(f"There is no device {config.device!r}. {suggest_names(config.device, devices)}")
    precisions = {"auto", *(precision for engine in engines for precision in engine.PRECISIONS)}
    if len(precisions) > 1 and config.precision not in precisions:
        raise UsageError(f"There is no precision {config.precision!r}. {suggest_names(config.precision, precisions)}")
