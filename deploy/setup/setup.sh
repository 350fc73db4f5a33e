#!/usr/bin/env bash
# Brings a Debian 12 machine to the point where everything builds and runs;
# `./dev setup` calls it, and so do the other commands. See README.md.
#   setup.sh [GROUP…]      groups of packages.txt, default: base
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
deps=${SLUICE_DEPS:-$HOME/.cache/sluice}
groups=("${@:-base}")
started=$SECONDS
mkdir -p "$deps"
log=$deps/setup.log

fail() { echo "error: setup: $*" >&2; exit 1; }

# step WHAT COMMAND…: runs the command and prints one line before and after it.
# Prints its output only if it fails.
step() {
  local what=$1 since=$SECONDS; shift
  printf 'setup: %s …\n' "$what"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    fail "$what failed (whole output: $log)"
  fi
  printf 'setup: %s: done in %d s\n' "$what" $((SECONDS - since))
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

list() { sed 's/#.*//; /^ *$/d' "$@"; }

missing_packages() {
  local group wanted
  wanted=$(for group in "${groups[@]}"; do
    list "$here/packages.txt" | awk -v g="$group" '$1 == g {print $2}'
  done)
  comm -23 <(sort -u <<<"$wanted") \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' |
      awk '$1 == "installed" {print $2}' | sort -u)
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    fail "these Debian packages are missing and this user may not install" \
      "them; as root: apt-get install ${missing[*]}"
  fi
  step "apt-get update" as_root apt-get update -q
  # Recommended packages are left out, so that no service is installed.
  step "apt-get install of ${#missing[@]} packages (${missing[*]})" \
    as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# Prometheus is not installed: its package would start and enable a service.
unpack_prometheus() {
  [ ! -x "$deps/prometheus/usr/bin/prometheus" ] || return 0
  local work=$deps/prometheus.new
  rm -rf "$work"; mkdir -p "$work"
  chmod 755 "$work"
  [ -n "$(find /var/lib/apt/lists -name '*Packages*' -print -quit)" ] ||
    step "apt-get update" as_root apt-get update -q
  step "prometheus (19 MB, unpacked, not installed)" \
    bash -c "cd '$work' && apt-get download -q prometheus &&
      dpkg -x prometheus_*.deb . && rm -f prometheus_*.deb"
  rm -rf "$deps/prometheus"; mv "$work" "$deps/prometheus"
}

has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

# libtorch, and the CUDA compiler if the machine has none, from PyPI's wheels
# into one folder, which is replaced as a whole if the lists change.
unpack_wheels() {
  local lists=("$here/python.txt") stamp=$deps/python/.stamp hash wheels
  has_nvcc || lists+=("$here/nvcc.txt")
  hash=$(list "${lists[@]}" | sha256sum | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null)" != "$hash" ] || return 0
  mapfile -t wheels < <(list "${lists[@]}")
  # Debian's Python is preferred, because the wheels were tested with it.
  local python=/usr/bin/python3
  "$python" -m pip --version >/dev/null 2>&1 || python=python3
  rm -rf "$deps/python.new" "$deps/python.old"
  step "PyPI: ${wheels[*]} (about 0.6 GB to download)" \
    "$python" -m pip install --no-deps --only-binary :all: --no-compile \
    --no-input --progress-bar off --target "$deps/python.new" "${wheels[@]}"
  echo "$hash" >"$deps/python.new/.stamp"
  [ ! -e "$deps/python" ] || mv "$deps/python" "$deps/python.old"
  mv "$deps/python.new" "$deps/python"
  rm -rf "$deps/python.old"
}

# make_venv NAME LIST SIZE: replaces the environment if the list has changed.
make_venv() {
  local venv=$deps/$1 list=$here/$2 size=$3 new=$deps/$1.new hash
  hash="$(list "$list" | sha256sum | cut -d' ' -f1) with bytecode"
  [ "$(cat "$venv/.stamp" 2>/dev/null)" != "$hash" ] || return 0
  rm -rf "$new" "$venv.old"
  step "a virtual environment for $2" \
    /usr/bin/python3 -m venv --prompt "sluice-$1" "$new"
  # --no-deps: the list has all dependencies.
  step "PyPI: $(list "$list" | head -n 7 | xargs) and what they need ($size)" \
    "$new/bin/python" -m pip install --no-deps --only-binary :all: \
    --no-compile --no-input --progress-bar off -r "$list"
  step "what was installed fits together" "$new/bin/python" -m pip check
  # Where PYTHONDONTWRITEBYTECODE is set, each process would compile torch again
  # (12 s instead of 6). Some packages ship templates *.py that are no Python.
  step "bytecode of what was installed" \
    bytecode "$new/bin/python" "$new"/lib/python3*/site-packages
  # The scripts in bin/ contain the path of the folder they were made in.
  grep -rlIZ -- "$new" "$new/bin" "$new/pyvenv.cfg" |
    xargs -r0 sed -i "s|$new|$venv|g"
  echo "$hash" >"$new/.stamp"
  [ ! -e "$venv" ] || mv "$venv" "$venv.old"
  mv "$new" "$venv"
  rm -rf "$venv.old"
}

bytecode() { "$1" -m compileall -q -j 0 "$2" || true; }

# For SluiceInstrumented.cmake and SluiceStatic.cmake: Debian has no archive of
# prometheus-cpp, and none with position-independent code of the others.
fetch_sources() {
  local folder=$deps/debian-sources new=$deps/debian-sources.new stamp
  stamp=$(dpkg-query -W -f '${source:Package} ${source:Version} ' \
    libprotobuf-dev libabsl-dev prometheus-cpp-dev)
  [ "$(cat "$folder/.stamp" 2>/dev/null)" != "$stamp" ] || return 0
  rm -rf "$new" "$folder.old"; mkdir -p "$new"
  step "Debian's sources of 3 packages (17 MB to download)" \
    in_folder "$new" fetch_sources_here
  echo "$stamp" >"$new/.stamp"
  [ ! -e "$folder" ] || mv "$folder" "$folder.old"
  mv "$new" "$folder"
  rm -rf "$folder.old"
}

in_folder() (set -e; cd "$1"; shift; "$@")

# Reads the index of the machine's mirrors; its package lists are not changed.
fetch_sources_here() {
  local file options
  mkdir -p apt/parts apt/lists/partial apt/cache/archives/partial
  for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$file" ] || ! grep -qi '^URIs:.*debian' "$file" ||
      sed 's/^Types:.*/Types: deb-src/' "$file" >"apt/parts/${file##*/}"
  done
  [ ! -s /etc/apt/sources.list ] ||
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >apt/parts/main.list
  options=(-q -o "Dir::Etc::SourceList=/dev/null"
    -o "Dir::Etc::SourceParts=$PWD/apt/parts"
    -o "Dir::State::Lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache")
  apt-get "${options[@]}" update
  source_tree libprotobuf-dev src/google google
  source_tree libabsl-dev absl absl
  source_tree prometheus-cpp-dev core/src prometheus
  rm -rf apt
}

# source_tree PACKAGE PATH NAME: puts the folder PATH of the installed package's
# source, with Debian's patches, into NAME.
source_tree() {
  local version source
  version=$(dpkg-query -W -f '${source:Version}' "$1")
  source=$(dpkg-query -W -f '${source:Package}' "$1")
  apt-get "${options[@]}" source --download-only "$source=$version"
  dpkg-source --no-check -x "$source"_*.dsc unpacked
  mv "unpacked/$2" "$3"
  rm -rf unpacked "$source"_*
}

command -v apt-get >/dev/null || fail "no apt-get: Sluice is built on Debian 12"
exec 9>"$deps/lock"
flock -n 9 || { echo "setup: waiting for another setup"; flock 9; }
install_packages
case " ${groups[*]} " in
  *" base "*) unpack_prometheus; unpack_wheels ;;
esac
case " ${groups[*]} " in
  *" python "*)
    make_venv venv venv.txt "about 2.6 GB to download, 5 GB on disk" ;;
esac
case " ${groups[*]} " in
  *" test "*)
    make_venv kubernetes kubernetes.txt "25 MB to download, 180 MB on disk" ;;
esac
case " ${groups[*]} " in
  *" test "*|*" lint "*) make_venv lint lint.txt "30 MB to download" ;;
esac
case " ${groups[*]} " in
  *" wheel "*)
    make_venv wheel wheel.txt "1 MB to download"
    fetch_sources ;;
esac
[ $((SECONDS - started)) -lt 2 ] ||
  printf 'setup: everything is there, %d s\n' $((SECONDS - started))
