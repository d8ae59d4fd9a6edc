#!/bin/sh
# Completes an installation beyond its files: users, groups, directories, the secret, and moving
# files that older versions had elsewhere. Called by `make install`, and by the package after it
# was unpacked. Repeating it changes nothing.
#
# Environment: ETC, SYSUSERS and TMPFILES (folders), and HAD_CONFIG=yes if a config existed
# before.
set -eu

etc=${ETC:-/etc/guideway}
sysusers=${SYSUSERS:-/usr/lib/sysusers.d}/guideway.conf
tmpfiles=${TMPFILES:-/usr/lib/tmpfiles.d}/guideway.conf
had_config=${HAD_CONFIG:-no}

main() {
    make_users
    protect_config
    move_members
    move_state
    make_directories
    make_secret
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
}

say() { echo "guideway: $*"; }

# By systemd where it is, else by hand.
make_users() {
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers "$sysusers"
        return
    fi
    for group in guideway guideway-speaker guideway-view guideway-operate; do
        getent group "$group" >/dev/null || groupadd --system "$group"
    done
    for user in guideway guideway-speaker; do
        getent passwd "$user" >/dev/null ||
            useradd --system --gid "$user" --home-dir "/var/lib/$user" --no-create-home --shell /usr/sbin/nologin "$user"
    done
    usermod -a -G guideway-view,guideway-operate,guideway-speaker guideway
    usermod -a -G guideway-view guideway-speaker
}

# Of the config that is new, or has the owner and mode that older versions gave it.
protect_config() {
    config=$etc/guideway.yaml
    if [ ! -f "$config" ] || [ -L "$config" ]; then
        return
    fi
    case $(stat -c '%U:%G %a' "$config") in
        'root:root 640' | 'root:root 644')
            chown root:guideway "$config"
            chmod 640 "$config"
            say "$config is for root and the controller (root:guideway, 0640)"
            ;;
    esac
}

# People were members of the group guideway, which is the controller's alone
# now: it may read the cluster's secret and set plans.
move_members() {
    for member in $(getent group guideway | cut -d: -f4 | tr , ' '); do
        [ "$member" != guideway ] || continue
        usermod -a -G guideway-operate "$member"
        gpasswd -d "$member" guideway >/dev/null
        say "$member is in the group guideway-operate now, and no longer in guideway, which is the controller's alone (to look only: guideway-view)"
    done
}

# The forwarder had its plan in the controller's directory.
move_state() {
    old=/var/lib/guideway/plan.json new=/var/lib/guideway-forwarder/plan.json
    install -d -m 700 /var/lib/guideway-forwarder
    # A link or a file of another user's is not the forwarder's.
    if [ -f $old ] && [ ! -L $old ] && [ "$(stat -c %u $old)" = 0 ] && [ ! -e $new ]; then
        mv $old $new
        say "moved the forwarder's last plan to $new"
    fi
}

make_directories() {
    # A controller of an older version had them here.
    rm -f /run/guideway/controller.sock /run/guideway/controller.lock
    # It refuses to work without /proc, as where an image is made.
    if command -v systemd-tmpfiles >/dev/null && [ -e /proc/self ]; then
        systemd-tmpfiles --create "$tmpfiles"
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
    key=$etc/cluster.key
    if [ -e "$key" ]; then
        chown root:guideway "$key"
        chmod 640 "$key"
        say "$key stays as it is (root:guideway, 0640)"
    elif [ "$had_config" = yes ] && ! grep -qs "secret_file.*$key" "$etc"/*; then
        say "no secret made: the config does not name $key"
    else
        (umask 077 && head -c 32 /dev/urandom | base64 >"$key.new")
        chgrp guideway "$key.new"
        chmod 640 "$key.new"
        mv "$key.new" "$key"
        say "made $key, the cluster's secret: all machines of a cluster need the same one, so copy it to the others, or theirs to here, before they start"
    fi
}

main
