#!/bin/sh
# deb says `configure` and the version before, if there was one; rpm how many there are now.
set -eu
had=no
case "${1-}:${2-}" in
    configure:?* | 2:*) had=yes ;;
    configure: | 1:*) ;;
    *) exit 0 ;;
esac
HAD_CONFIG=$had sh /usr/share/guideway/settle.sh
if [ $had = no ]; then
    cat <<'EOM'
guideway: nothing is started yet. Next:
  guideway init                        # or edit the example, /etc/guideway/guideway.yaml
  guideway config check /etc/guideway/guideway.yaml
  systemctl enable --now guideway-forwarder guideway-speaker guideway-controller
  usermod -a -G guideway-view YOU      # to look without root; guideway-operate to drain and reload, too
EOM
    exit 0
fi
[ -d /run/systemd/system ] || exit 0

# A take-over: packets wait for some milliseconds, and none is lost.
if systemctl is-active -q guideway-forwarder && ! systemctl reload guideway-forwarder; then
    echo "guideway: the forwarder goes on as the version before: see journalctl -u guideway-forwarder, then systemctl reload guideway-forwarder" >&2
fi
systemctl try-restart guideway-controller guideway-probe
if systemctl is-active -q guideway-speaker; then
    echo "guideway: the speaker goes on as the version before, for its sessions begin anew with another. When it suits:"
    echo "  guideway drain machine --wait && systemctl restart guideway-speaker && guideway undrain machine"
fi
