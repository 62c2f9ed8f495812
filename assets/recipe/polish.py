"""A short second training of a starter that exists. `python -m recipe.polish FOLDER --weights 5m-harder --minutes 12`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

from recipe import data, model, tokenizer, train
from recipe.harder import pools
from recipe.mixture import FURTHER, MIXTURE, POLISH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model to begin from")
    parser.add_argument("--weights", choices=list(POLISH), required=True, help="of mixture.POLISH")
    parser.add_argument("--minutes", type=float, default=12.0, help="see Plan.minutes")
    parser.add_argument("--rate", type=float, default=0.5, help="see Plan.polish_rate")
    parser.add_argument("--work", type=Path, default=Path("recipe-work"), help="caches and checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="model folder")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folders = {arguments.work / "data": MIXTURE, arguments.work / "data-further": FURTHER}
    sizes = [data.build(folder, mixture, arguments.processes) for folder, mixture in folders.items()]
    usual, further = map(data.load, folders)
    words = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    rows = {name: train.encode(found, words) for name, found in pools(usual, further).items()}
    net = model.load(arguments.model)
    stages = POLISH[arguments.weights]
    plan = train.Plan(0.0, polish=arguments.minutes, polish_rate=arguments.rate, seed=arguments.seed)
    run_folder = arguments.work / f"polish-{arguments.output.name}"
    done = train.run(net, rows, stages, stages, words, plan, run_folder, lambda line: print(line, flush=True))
    model.save(
        net, arguments.output, tokenizer.token_id(words, tokenizer.END), tokenizer.token_id(words, tokenizer.STOP)
    )
    tokenizer.save(words, arguments.output)
    record = json.loads((arguments.model / "recipe.json").read_text(encoding="utf-8"))
    steps = {"weights": stages, "minutes": arguments.minutes, "rate": arguments.rate, "examples": sizes, "done": done}
    record["afterwards"] = [*record.get("afterwards", []), {"polish": steps}]
    (arguments.output / "recipe.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
