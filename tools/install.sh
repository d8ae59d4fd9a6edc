#!/usr/bin/env bash
# Installs what `make build` built. Called by `make install`:
#
#   tools/install.sh DESTDIR PREFIX SYSCONFDIR UNITDIR SYSUSERSDIR TMPFILESDIR
#
# Nothing is enabled or started, and a config that is there stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly destdir=$1 prefix=$2 sysconfdir=$3 unitdir=$4 sysusersdir=$5 tmpfilesdir=$6

main() {
    install_programs
    install_units
    install_config
    if [[ -z $destdir ]]; then
        tell_systemd
        next_steps
    fi
}

install_programs() {
    local program
    for program in guideway guideway-forwarder guideway-agent; do
        [[ -x bin/$program ]] || {
            echo "install: bin/$program is missing: run 'make build' first (as yourself, not as root)" >&2
            exit 1
        }
        install -D -m 755 "bin/$program" "$destdir$prefix/bin/$program"
    done
}

# The units in the tree say /usr/bin and /etc, as a distribution would.
install_units() {
    local unit
    for unit in packaging/systemd/*.service; do
        install -d "$destdir$unitdir"
        sed -e "s|/usr/bin/guideway|$prefix/bin/guideway|g" -e "s|/etc/guideway|$sysconfdir/guideway|g" \
            "$unit" >"$destdir$unitdir/${unit##*/}"
        chmod 644 "$destdir$unitdir/${unit##*/}"
    done
    install -D -m 644 packaging/sysusers.conf "$destdir$sysusersdir/guideway.conf"
    install -D -m 644 packaging/tmpfiles.conf "$destdir$tmpfilesdir/guideway.conf"
}

install_config() {
    local target=$destdir$sysconfdir/guideway/guideway.yaml
    if [[ -e $target ]]; then
        echo "install: $target stays as it is"
    else
        install -D -m 644 packaging/config/guideway.yaml "$target"
    fi
}

# The user and the directories, now rather than at the next boot.
tell_systemd() {
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers "$sysusersdir/guideway.conf"
    fi
    if command -v systemd-tmpfiles >/dev/null; then
        systemd-tmpfiles --create "$tmpfilesdir/guideway.conf"
    fi
    if [[ -d /run/systemd/system ]]; then
        systemctl daemon-reload
    fi
}

next_steps() {
    cat <<EOM
install: done. Next:
  edit $sysconfdir/guideway/guideway.yaml
  $prefix/bin/guideway config check $sysconfdir/guideway/guideway.yaml
  systemctl enable --now guideway-forwarder guideway-controller
EOM
}

main "$@"
