#!/bin/sh
set -eu
readonly state="/var/lib/guideway /var/lib/guideway-speaker /var/lib/guideway-forwarder"
case ${1-} in
    remove | 0)
        echo "guideway: the cluster's secret (/etc/guideway/cluster.key) and state ($state) stay; with apt, 'apt purge guideway' removes them"
        ;;
    purge)
        rm -rf $state
        rm -f /etc/guideway/cluster.key
        echo "guideway: removed the cluster's secret (/etc/guideway/cluster.key) and state ($state)"
        ;;
    *) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload
