#!/bin/sh
# Only what is removed, not replaced (deb says `remove`, rpm that none is left).
set -eu
case ${1-} in remove | 0) ;; *) exit 0 ;; esac
[ ! -d /run/systemd/system ] || systemctl disable --now guideway-agent guideway-backend
[ ! -e /etc/guideway/backend.sh ] ||
    echo "guideway-agent: the VIPs and settings of this server stay until its next boot: \`guideway-agent setup --undo\` takes them back"
# Pinned, its program in the kernel would go on without it.
guideway-agent --detach || echo "guideway-agent: no program was taken off an interface: see above" >&2
