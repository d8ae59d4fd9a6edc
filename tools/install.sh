#!/usr/bin/env bash
# Installs the programs that `make build` built. Called by `make install`:
#
#   tools/install.sh DESTDIR PREFIX SYSCONFDIR UNITDIR SYSUSERSDIR TMPFILESDIR
#   tools/install.sh --remove PREFIX
#
# Programs are taken from the folder BIN (bin). Nothing is enabled or started, and an existing
# config or secret is kept. With DESTDIR, for a package, only files are written. Without it,
# packaging/settle.sh completes the installation, and the files written are listed in
# PREFIX/share/guideway/installed. --remove deletes these, but no config, secret or state.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly destdir=$1 prefix=$2 sysconfdir=${3-} unitdir=${4-} sysusersdir=${5-} tmpfilesdir=${6-}
readonly etc=$sysconfdir/guideway
readonly listed=$prefix/share/guideway/installed
had_config=no
written=()

main() {
    if [[ $destdir == --remove ]]; then
        remove
        return
    fi
    install_programs
    install_units
    install_share
    install_config
    if [[ -z $destdir ]]; then
        printf '%s\n' "${written[@]}" | grep -v "^$etc/" >"$listed"
        ETC=$etc SYSUSERS=$sysusersdir TMPFILES=$tmpfilesdir HAD_CONFIG=$had_config sh "$prefix/share/guideway/settle.sh"
        next_steps
    fi
}

say() { echo "install: $*"; }

# put MODE FROM TO
put() {
    written+=("$3")
    install -D -m "$1" "$2" "$destdir$3"
}

install_programs() {
    local program bin=${BIN:-bin}
    for program in guideway guideway-forwarder guideway-agent; do
        [[ -x $bin/$program ]] || {
            echo "install: $bin/$program is missing: run 'make build' first (as yourself, not as root)" >&2
            exit 1
        }
        put 755 "$bin/$program" "$prefix/bin/$program"
    done
}

# The units in the tree say /usr/bin and /etc, as a distribution would.
install_units() {
    local unit
    for unit in packaging/systemd/*.service; do
        put 644 <(sed -e "s|/usr/bin/guideway|$prefix/bin/guideway|g" -e "s|/etc/guideway|$etc|g" "$unit") "$unitdir/${unit##*/}"
    done
    put 644 packaging/sysusers.conf "$sysusersdir/guideway.conf"
    put 644 packaging/tmpfiles.conf "$tmpfilesdir/guideway.conf"
}

# What is done after files are there, and what is for Prometheus, Grafana and Wireshark, on
# whatever machine they are.
install_share() {
    local file
    put 644 packaging/settle.sh "$prefix/share/guideway/settle.sh"
    for file in packaging/prometheus/*.yml packaging/grafana/*.json packaging/wireshark/*.lua; do
        put 644 "$file" "$prefix/share/guideway/${file#packaging/}"
    done
}

install_config() {
    local file target
    [[ ! -e $destdir$etc/guideway.yaml ]] || had_config=yes
    for file in packaging/config/*; do
        target=$etc/${file##*/}
        if [[ -e $destdir$target ]]; then
            say "$destdir$target stays as it is"
        else
            put "$(mode_of "${file##*/}")" <(sed "s|/etc/guideway|$etc|g" "$file") "$target"
        fi
    done
}

# Health checks of the controller's config may have tokens among their headers. A package
# gives that file to the group guideway, as protect_config does here.
mode_of() {
    case $1 in
        guideway.yaml) echo 640 ;;
        *) echo 644 ;;
    esac
}

# What is not in the list stays, and is told.
remove() {
    local files service
    [[ -f $listed ]] || {
        echo "install: $listed is missing: nothing was installed there, or by a package" >&2
        exit 1
    }
    mapfile -t files <"$listed"
    if [[ -d /run/systemd/system ]]; then
        # The speaker first: it withdraws the routes while packets are still forwarded.
        for service in speaker controller forwarder probe agent; do
            systemctl disable --now "guideway-$service"
        done
    fi
    # Pinned, its program would go on without it.
    "$prefix/bin/guideway-agent" --detach >/dev/null 2>&1 || true
    rm -f "${files[@]}" "$listed"
    rmdir --ignore-fail-on-non-empty "$prefix"/share/guideway/{*/,}
    [[ ! -d /run/systemd/system ]] || systemctl daemon-reload
    say "removed ${#files[@]} files; configs and the secret (guideway in the system's etc) and state (/var/lib/guideway*) stay"
}

next_steps() {
    cat <<EOM
install: done. Next:
  edit $etc/guideway.yaml
  $prefix/bin/guideway config check $etc/guideway.yaml
  systemctl enable --now guideway-forwarder guideway-speaker guideway-controller
  usermod -a -G guideway-view YOU      # to look without root; guideway-operate to drain and reload, too
After an upgrade of running services (docs/operate.md, "Upgrading"):
  systemctl reload guideway-forwarder && systemctl restart guideway-controller
EOM
}

main "$@"
