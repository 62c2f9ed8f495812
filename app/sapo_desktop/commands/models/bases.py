"""The part of `sapo-desktop models` about models to start from: the list, the card of one, its download."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

import msgspec

from sapo_backends.checkpoints import hub_cache, locate
from sapo_backends.checkpoints.local_models import is_named
from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, quote_command
from sapo_desktop.services.bases import card, fetching, local_models, recommended
from sapo_desktop.services.models.shelf import store
from sapo_desktop.settings import flags
from sapo_desktop.streams import json_line, overwrite_line
from sapo_swarm.protocol.safe_text import safe_text


def list_bases(home: Home, args: argparse.Namespace) -> int:
    """List the bases: bundled, from other programs on this computer, on this disk, recommended. Works offline."""
    config = settings.load_settings(home.settings).run
    import sapo_assets

    bundled = sapo_assets.models()
    here = {one.repository: one for one in hub_cache.all_cached()}
    recommendations = recommended.load_recommended_list()
    local = local_models.scan_local_bases(flags.propose_run(config, model="starter"))

    def rows(names: Iterable[str]) -> None:
        for name in names:
            if name in here and not here[name].complete:
                hint = f"a part is here: sapo-desktop models fetch {name}"
                print(json_line({"base": name, "partial": here[name].bytes}) if args.json else f"{name:<38} {hint}")
                continue
            base_config = flags.propose_run(config, model=name)
            base_card = card.build_base_card(home, base_config, ask=False, measure=False)
            path = {"path": str(bundled[name])} if name in bundled else {}
            promise = f", {base.promise}" if (base := recommended.find_recommended_base(name)) and base.promise else ""
            print(
                json_line({"base": name, **path, **card.as_json(base_card)})
                if args.json
                else f"{name:<38} {base_card.short}{promise}"
            )

    def head(title: str) -> None:
        if not args.json:
            print(title)

    head("Bundled: toys, to see how it works")
    rows(bundled)
    head("\nOn this computer")
    others = [one for one in local.bases if one.base not in here]
    for one in others:
        line = f"{safe_text(one.base, 200, lines=False):<38} {one.short}"
        print(json_line(local_models.as_json(one)) if args.json else line)
    rows(here)
    for sentence in local.sentences:
        print(sentence, file=sys.stderr if args.json else sys.stdout)
    if not others and not here:
        head("nothing yet: LM Studio's, Ollama's and llama.cpp's models, the hub's cache and Downloads would be listed")
    head(f"\nTo download: recommended, the list is of {recommendations.date}")
    rows(base.id for base in recommendations.bases if base.id not in here)
    head("\nAny Hugging Face folder, GGUF file or hub id works too. What one asks of this machine:")
    head("sapo-desktop models show BASE")
    return 0


def is_base_name(home: Home, name: str) -> bool:
    """Whether the name is a base's and not one of the user's models'."""
    mine = any(name in (model.name, model.record.id) for model in store.all_models(home))
    return not mine and (name in locate.BUNDLED or "/" in name or is_named(name) or locate.gguf_file(name) is not None)


def show_base(home: Home, args: argparse.Namespace) -> int:
    """show BASE: print its card. A machine that was not measured yet is measured once, after printing what is known."""
    run = settings.load_settings(home.settings).run
    config = flags.propose_run(run, fetching.fetch_base_metadata, model=args.names[0])
    base_card = card.build_base_card(home, config, measure=False)
    if args.json:
        print(json_line(card.as_json(card.add_time_forecast(home, config, base_card))))
        return 0
    print("\n".join(card.base_card_lines(base_card)[: card.UNTIMED]), flush=True)
    if base_card.time is None:
        overwrite_line("time        measuring this machine, once …")
        base_card = card.add_time_forecast(home, config, base_card)
        overwrite_line("")
    print("\n".join(card.base_card_lines(base_card)[card.UNTIMED :]))
    print(f"\nTrain it: {quote_command('sapo-desktop', 'new', 'my-model', '--base', base_card.model)}")
    return 0


def fetch_base(home: Home, args: argparse.Namespace) -> int:
    """fetch OWNER/NAME: download it now; Ctrl-C keeps the partial download."""
    name = args.names[0]
    if not locate.is_hub_id(name):
        raise UsageError(f"{name!r} is no model of the hub: those are written owner/name.")
    config = msgspec.structs.replace(settings.load_settings(home.settings).run, model=name)
    try:
        fetching.download_base(config, _progress)
    except KeyboardInterrupt:
        print(f"\nStopped. What arrived is kept: sapo-desktop models fetch {name} goes on from there.", file=sys.stderr)
        return 130
    print(f"{name} is on this disk. Train it: sapo-desktop new my-model --base {name}")
    return 0


def _progress(fraction: float, phrase: str) -> None:
    overwrite_line(phrase if fraction < 1 else "")  # the phrase includes the percentage
