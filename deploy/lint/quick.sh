#!/usr/bin/env bash
# The linters that compile nothing, over the whole tree, even if others failed.
# `./dev lint` and `./dev test` call it; see /pyproject.toml.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
bin=${SLUICE_DEPS:-$HOME/.cache/sluice}/lint/bin
cache=build/lint
mkdir -p $cache
failed=()

check() {  # check NAME COMMAND…
  local name=$1 since=$SECONDS; shift
  if "$@" >$cache/"$name.log" 2>&1 </dev/null; then
    echo "lint: $name: clean, $((SECONDS - since)) s"
  else
    cat $cache/"$name.log"
    failed+=("$name")
  fi
}

format() {
  git ls-files -z '*.cc' '*.h' '*.cu' |
    xargs -0 clang-format --dry-run --Werror ||
    { echo "./dev format --all repairs the format"; return 1; }
}

shell() { git grep -lzE '^#!.*\b(bash|sh)$' | xargs -0 shellcheck; }

layers() {
  PYTHONPATH=client/python "$bin"/lint-imports --no-logo \
    --cache-dir $cache/imports
}

check format format
check ruff "$bin"/ruff check --cache-dir $cache/ruff .
check mypy "$bin"/mypy --cache-dir $cache/mypy
check import-linter layers
check shellcheck shell
[ ${#failed[@]} = 0 ] || { echo "error: lint: ${failed[*]}" >&2; exit 1; }
