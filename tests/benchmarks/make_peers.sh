#!/bin/sh
# Makes the environment of the peers that bench_round.py compares with: sh make_peers.sh [folder]
set -eu
folder="${1:-.venv-peers}"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --requirement "$(dirname "$0")/requirements.txt"
echo "$folder/bin/python"
