#!/usr/bin/env bash
# Installs what `make build` built. Called by `make install`:
#
#   tools/install.sh DESTDIR PREFIX SYSCONFDIR UNITDIR SYSUSERSDIR TMPFILESDIR
#
# Nothing is enabled or started, and a config or a secret that is there stays
# as it is. With DESTDIR (to make a package) only files are written; without it
# users, groups, directories and a secret are made, too, and what an older
# version had elsewhere is moved.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly destdir=$1 prefix=$2 sysconfdir=$3 unitdir=$4 sysusersdir=$5 tmpfilesdir=$6
readonly etc=$sysconfdir/guideway
had_config=no

main() {
    install_programs
    install_units
    install_monitoring
    install_config
    if [[ -z $destdir ]]; then
        make_users
        protect_config
        move_members
        move_state
        make_directories
        make_secret
        tell_systemd
        next_steps
    fi
}

say() { echo "install: $*"; }

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
        sed -e "s|/usr/bin/guideway|$prefix/bin/guideway|g" -e "s|/etc/guideway|$etc|g" \
            "$unit" >"$destdir$unitdir/${unit##*/}"
        chmod 644 "$destdir$unitdir/${unit##*/}"
    done
    install -D -m 644 packaging/sysusers.conf "$destdir$sysusersdir/guideway.conf"
    install -D -m 644 packaging/tmpfiles.conf "$destdir$tmpfilesdir/guideway.conf"
}

# For Prometheus and Grafana, on whatever machine they are.
install_monitoring() {
    local file
    for file in packaging/prometheus/*.yml packaging/grafana/*.json; do
        install -D -m 644 "$file" "$destdir$prefix/share/guideway/${file#packaging/}"
    done
}

install_config() {
    local file target
    [[ ! -e $destdir$etc/guideway.yaml ]] || had_config=yes
    for file in packaging/config/*; do
        target=$destdir$etc/${file##*/}
        if [[ -e $target ]]; then
            say "$target stays as it is"
        else
            install -d "${target%/*}"
            sed "s|/etc/guideway|$etc|g" "$file" >"$target"
            chmod "$(mode_of "${file##*/}")" "$target"
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

# Of the config that is new, or has the owner and mode that older versions gave it.
protect_config() {
    local config=$etc/guideway.yaml
    if [[ -f $config && ! -L $config && $(stat -c '%U:%G %a' "$config") =~ ^root:root\ 64[04]$ ]]; then
        chown root:guideway "$config"
        chmod 640 "$config"
        say "$config is for root and the controller (root:guideway, 0640)"
    fi
}

# By systemd where it is, else by hand.
make_users() {
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers "$sysusersdir/guideway.conf"
        return
    fi
    local group
    for group in guideway guideway-speaker guideway-view guideway-operate; do
        getent group "$group" >/dev/null || groupadd --system "$group"
    done
    getent passwd guideway >/dev/null ||
        useradd --system --gid guideway --home-dir /var/lib/guideway --no-create-home --shell /usr/sbin/nologin guideway
    getent passwd guideway-speaker >/dev/null ||
        useradd --system --gid guideway-speaker --home-dir /var/lib/guideway-speaker --no-create-home --shell /usr/sbin/nologin guideway-speaker
    usermod -a -G guideway-view,guideway-operate,guideway-speaker guideway
    usermod -a -G guideway-view guideway-speaker
}

# People were members of the group guideway, which is the controller's alone
# now: it may read the cluster's secret and set plans.
move_members() {
    local member
    for member in $(getent group guideway | cut -d: -f4 | tr , ' '); do
        [[ $member != guideway ]] || continue
        usermod -a -G guideway-operate "$member"
        gpasswd -d "$member" guideway >/dev/null
        say "$member is in the group guideway-operate now, and no longer in guideway, which is the controller's alone (to look only: guideway-view)"
    done
}

# The forwarder had its plan in the controller's directory.
move_state() {
    local old=/var/lib/guideway/plan.json new=/var/lib/guideway-forwarder/plan.json
    install -d -m 700 /var/lib/guideway-forwarder
    # A link or a file of another user's is not the forwarder's.
    if [[ -f $old && ! -L $old && $(stat -c %u "$old") == 0 && ! -e $new ]]; then
        mv "$old" "$new"
        say "moved the forwarder's last plan to $new"
    fi
}

make_directories() {
    # A controller of an older version had them here.
    rm -f /run/guideway/controller.sock /run/guideway/controller.lock
    if command -v systemd-tmpfiles >/dev/null; then
        systemd-tmpfiles --create "$tmpfilesdir/guideway.conf"
        return
    fi
    install -d -m 755 /run/guideway
    install -d -m 755 -o guideway -g guideway /run/guideway/controller
    install -d -m 755 -o guideway-speaker -g guideway-speaker /run/guideway/speaker
    install -d -m 700 -o guideway -g guideway /var/lib/guideway
    install -d -m 700 -o guideway-speaker -g guideway-speaker /var/lib/guideway-speaker
    install -d -m 700 /var/lib/guideway-forwarder
}

# Root's, for the forwarder; the group's, for the controller.
make_secret() {
    local key=$etc/cluster.key
    if [[ -e $key ]]; then
        chown root:guideway "$key"
        chmod 640 "$key"
        say "$key stays as it is (root:guideway, 0640)"
    elif [[ $had_config == yes ]] && ! grep -qs "secret_file.*$key" "$etc"/*; then
        say "no secret made: the config does not name $key"
    else
        head -c 32 /dev/urandom | base64 | install -m 640 -g guideway /dev/stdin "$key"
        say "made $key, the cluster's secret: all machines of a cluster need the same one, so copy it to the others, or theirs to here, before they start"
    fi
}

tell_systemd() {
    if [[ -d /run/systemd/system ]]; then
        systemctl daemon-reload
    fi
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
