"""Runs tests as a plain user if root starts them, because root's privileges
hide defects. Without CAP_SYS_RESOURCE the kernel limits the descriptors in
flight; without CAP_CHOWN a process cannot change the owner of a folder.

A folder that only root can reach, such as root's home, is made reachable for
these tests only, in a mount namespace: an empty folder replaces it, with the
needed folders bound into it. Nothing outside the namespace changes."""

import os
import shlex

USER = "nobody"


def blocked_at(path):
    """Returns the uppermost folder of `path` that other users cannot enter, or
    None."""
    above = "/"
    for part in os.path.realpath(path).strip("/").split("/"):
        above = os.path.join(above, part)
        if not os.stat(above).st_mode & 0o1:
            return above
    return None


def command(words, needed):
    """Returns a command that runs `words` where other users can reach each path
    of `needed`."""
    needed = [os.path.realpath(path) for path in needed if os.path.exists(path)]
    blocked = {path: at for path in needed if (at := blocked_at(path))}
    if not blocked:
        return list(words)
    script = ["set -e", "bound=$(mktemp -d)"]
    for i, path in enumerate(blocked):
        script += [f"mkdir $bound/{i}",
                   f"mount --bind {shlex.quote(path)} $bound/{i}"]
    for at in sorted(set(blocked.values())):
        script.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(at)}")
    for i, path in enumerate(blocked):
        script += [f"mkdir -p {shlex.quote(path)}",
                   f"mount --move $bound/{i} {shlex.quote(path)}"]
    script += ["rm -r $bound", f"cd {shlex.quote(os.getcwd())}", 'exec "$@"']
    return ["unshare", "--mount", "--propagation", "private",
            "sh", "-c", "\n".join(script), "sh", *words]
