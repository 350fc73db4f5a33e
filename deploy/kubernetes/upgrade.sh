#!/bin/sh
# upgrade.sh FROM TO ARGUMENTS...: puts the sluiced of FROM in the place of the
# one that runs on this node from TO, and returns when it serves. ARGUMENTS are
# the running one's. Its keeper hands it all that jobs hold, so none of them
# notices. One that would not take over changes nothing: status 1, and why. So
# it is where one runs that does not serve, such as a frozen one.
set -eu
from=$1 to=$2
shift 2
admin=/run/sluice/admin.sock
option=
for word in "$@"; do
  [ "$option" != --runtime-dir ] || admin=$word/admin.sock
  option=$word
done

# The process that runs from TO, if any, and not from a file that was replaced.
running() {
  for exe in /proc/[0-9]*/exe; do
    if [ "$(readlink "$exe")" = "$to/sluiced" ]; then
      exe=${exe#/proc/}
      echo "${exe%/exe}"
      return
    fi
  done
}

# Whether a process runs from TO, not process $1, and serves within 30 s: `now`
# is its id, else `why` says what is wrong. A frozen one answers
# --check-state too, and would not serve later either.
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

# Beside what is there, and then by rename: a keeper may start it at any moment.
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
  # The second time, perhaps, that an upgrade is tried which failed.
  if ! serves ""; then
    echo "process $earlier is this sluiced already, and does not serve: $why" >&2
    exit 1
  fi
  echo "process $earlier is this sluiced already"
  exit 0
fi
# A keeper without `--session-dir` would start it with other arguments.
if ! [ -e "$admin" ]; then
  rm "$to/sluiced.next" "$to/sluice-worker.next"
  echo "sluiced was not replaced, and process $earlier goes on: it has no" \
    "$admin. Its keeper was started with other arguments: drain the node, wait" \
    "for its jobs, then delete the keeper's pod" >&2
  exit 1
fi
# With the libraries of the keeper's image, where it is to run.
if ! said=$(chroot "/proc/$earlier/root" "$to/sluiced.next" "$@" \
    --check-state 2>&1); then
  rm "$to/sluiced.next" "$to/sluice-worker.next"
  echo "sluiced was not replaced, and process $earlier goes on: $said" >&2
  exit 1
fi
put_in_place
# A daemon that its keeper did not end is started again.
kill -TERM "$earlier"
if ! serves "$earlier"; then
  echo "sluiced was replaced, and the new one does not serve: $why" >&2
  exit 1
fi
echo "process $now took over from $earlier: $said"
