#!/bin/sh
# Only what is removed, not replaced (deb says `remove`, rpm that none is left).
set -eu
case ${1-} in remove | 0) ;; *) exit 0 ;; esac
[ -d /run/systemd/system ] || exit 0
# The speaker first: it withdraws the routes while packets are still forwarded.
for service in speaker controller forwarder probe; do
    systemctl disable --now guideway-$service
done
