#!/bin/sh
# upgrade.sh FROM TO ARGUMENTS...: replaces the sluiced that runs on this node
# from TO, with ARGUMENTS, by the one in FROM, and returns when it serves. Its
# keeper passes all state on, so no job is interrupted. If the new one would not
# take over, or the running one does not serve (because it is frozen), nothing
# changes, and the script prints why and exits with 1.
set -eu
from=$1 to=$2
shift 2
admin=/run/sluice/admin.sock
option=
for word in "$@"; do
  [ "$option" != --runtime-dir ] || admin=$word/admin.sock
  option=$word
done

# Prints the process that runs the current file in TO, if any.
running() {
  for exe in /proc/[0-9]*/exe; do
    if [ "$(readlink "$exe")" = "$to/sluiced" ]; then
      exe=${exe#/proc/}
      echo "${exe%/exe}"
      return
    fi
  done
}

# Returns whether a process other than $1 runs from TO and serves within 30 s:
# sets `now` to its id, or `why` to the reason. A frozen one will not serve.
serves() {
  why="none has started within 30 s: see its keeper's log"
  until=$(($(date +%s) + 30))
  while [ "$(date +%s)" -lt "$until" ]; do
    now=$(running)
    if [ -n "$now" ] && [ "$now" != "$1" ]; then
      why=$("$from/sluicectl" --admin-socket "$admin" --admin status 2>&1 \
        >/dev/null) && return
      case $why in *"sluiced is frozen"*) return 1 ;; esac
    fi
    sleep 0.1
  done
  return 1
}

# Files are renamed into place, because a keeper may start them at any moment.
mkdir -p "$to"
for program in sluice-worker sluiced; do
  cp "$from/$program" "$to/$program.next"
done
put_in_place() {
  for program in sluice-worker sluiced; do
    mv "$to/$program.next" "$to/$program"
  done
}

earlier=$(running)
if [ -z "$earlier" ]; then
  put_in_place
  echo "no sluiced ran from $to; its keeper starts the one that is there now"
  exit 0
fi
if cmp -s "$to/sluiced" "$to/sluiced.next"; then
  rm "$to/sluiced.next" "$to/sluice-worker.next"
  # This may be the second try of a failed upgrade, so the state is checked.
  if ! serves ""; then
    echo "process $earlier is this sluiced already, and does not serve:" \
      "$why" >&2
    exit 1
  fi
  echo "process $earlier is this sluiced already"
  exit 0
fi
# A keeper without `--session-dir` would start the new one with other arguments.
if ! [ -e "$admin" ]; then
  rm "$to/sluiced.next" "$to/sluice-worker.next"
  echo "sluiced was not replaced, and process $earlier goes on: it has no" \
    "$admin. Its keeper was started with other arguments: drain the node," \
    "wait for its jobs, then delete the keeper's pod" >&2
  exit 1
fi
# The new program is checked with the libraries of the keeper's image, its host.
if ! said=$(chroot "/proc/$earlier/root" "$to/sluiced.next" "$@" \
    --check-state 2>&1); then
  rm "$to/sluiced.next" "$to/sluice-worker.next"
  echo "sluiced was not replaced, and process $earlier goes on: $said" >&2
  exit 1
fi
put_in_place
# The keeper restarts a daemon that it did not end itself.
kill -TERM "$earlier"
if ! serves "$earlier"; then
  echo "sluiced was replaced, and the new one does not serve: $why" >&2
  exit 1
fi
echo "process $now took over from $earlier: $said"
