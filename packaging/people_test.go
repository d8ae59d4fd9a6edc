package packaging

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guideway/guideway/looptest"
)

// As systemd starts them: users, groups and capabilities of the units, their
// command lines, the installed config. The machine has an eth1 with the
// config's address; the script below is run when both serve.
const likeTheUnits = `
set -m
mount -t sysfs sysfs /sys 2>/dev/null || true
ip link set lo up
ip link add eth1 type veth peer name peer1
ip address add 10.0.0.1/24 dev eth1; ip link set eth1 up; ip link set peer1 up
useradd -G guideway-view alice; useradd -G guideway-operate bob; useradd carol
command_of() { sed -n 's/^ExecStart=//p' $STAGE/usr/units/$1.service | sed 's/\$[A-Z]*_OPTIONS//'; }
groups_of() { sed -n 's/^SupplementaryGroups=//p' $STAGE/usr/units/$1.service | tr ' ' ,; }
as() { local user=$1; shift; setpriv --reuid $user --regid $user --init-groups "$@"; }
setpriv --bounding-set -all,+net_admin,+net_raw,+cap_38,+cap_39,+ipc_lock --inh-caps -all --no-new-privs \
    --regid 0 --groups $(groups_of guideway-forwarder) $(command_of guideway-forwarder) 2>$STAGE/forwarder.log &
forwarder=$!
setpriv --reuid guideway --regid guideway --init-groups --bounding-set -all,+net_raw --inh-caps -all,+net_raw --ambient-caps -all,+net_raw --no-new-privs \
    $(command_of guideway-controller) 2>$STAGE/controller.log &
controller=$!
setpriv --reuid guideway-speaker --regid guideway-speaker --init-groups --bounding-set -all,+net_bind_service --inh-caps -all,+net_bind_service --ambient-caps -all,+net_bind_service --no-new-privs \
    $(command_of guideway-speaker) 2>$STAGE/speaker.log &
speaker=$!
holders=
trap 'kill $forwarder $controller $speaker $holders; wait' EXIT
guideway() { $STAGE/usr/bin/guideway "$@"; }
# Health changes the plan now and then: the newest runs at some moment, not at each.
until_serving() {
    for i in $(seq 100); do
        guideway doctor >$STAGE/doctor 2>&1 || true
        grep -q 'wanted and running' $STAGE/doctor && break
        sleep 0.1
    done
}
until_serving
may() { echo "$@" may; as "$@" || { echo "$@: FAILED $?"; cat $STAGE/*.log; }; }
may_not() { echo "$@" may not; ! as "$@" || echo "$@: ALLOWED"; }
`

// installed is a machine with the programs that were built.
func installed(t *testing.T) machine {
	m := newMachine(t)
	for _, program := range []string{"guideway", "guideway-forwarder", "guideway-agent"} {
		bin := looptest.Program(t, program)
		m.host(fmt.Sprintf("cp %s $STAGE/tree/bin/; chmod -R a+rX $STAGE", bin))
	}
	// Above the stage, others may pass through as well.
	m.host("chmod a+x $(dirname $STAGE)")
	m.install()
	return m
}

// serving runs a script on a machine on which both processes serve.
func (m machine) serving(script string) string {
	m.t.Helper()
	return m.inNetwork(likeTheUnits + script)
}

func TestAsInstalledItForwardsAndGroupsMayWhatTheyMay(t *testing.T) {
	m := installed(t)
	said := m.serving(`
stat -c '%n %U:%G %a' /run/guideway/*.sock /run/guideway/controller/*.sock /run/guideway/speaker/*.sock
for i in $(seq 100); do grep -q 'announcing what is desired' $STAGE/speaker.log && break; sleep 0.1; done
cat $STAGE/speaker.log
as guideway $STAGE/usr/bin/guideway config check /etc/guideway/guideway.yaml
until_serving
cat $STAGE/doctor
g=$STAGE/usr/bin/guideway
may alice $g show services
may alice $g show drops
may_not alice $g drain machine
may_not alice $g reload
may_not alice $g capture -w /dev/null
may bob $g show services
may bob $g reload
may bob $g drain machine --force
may bob $g undrain machine
may_not carol $g show services
may_not carol touch /run/guideway/mine
may_not guideway touch /run/guideway/mine
may_not guideway ls /var/lib/guideway-forwarder
may_not alice cat /etc/guideway/cluster.key
may_not guideway-speaker cat /etc/guideway/cluster.key
may_not alice cat /etc/guideway/guideway.yaml
may_not guideway touch /etc/guideway/guideway.yaml
(cat /etc/guideway/guideway.yaml; echo '# new') >$STAGE/new.yaml; chmod 644 $STAGE/new.yaml
may bob $g config plan $STAGE/new.yaml
may root $g config apply $STAGE/new.yaml --config /etc/guideway/guideway.yaml
tail -n 1 /etc/guideway/guideway.yaml
stat -c '%n %U:%G %a' /etc/guideway/guideway.yaml
may_not guideway-speaker ls /var/lib/guideway
may_not guideway ls /var/lib/guideway-speaker
may_not bob ls /var/lib/guideway
may_not guideway cat /run/guideway/forwarder.lock
`)
	for _, wanted := range []string{
		"/run/guideway/forwarder.sock root:guideway-operate 660",
		"/run/guideway/forwarder-view.sock root:guideway-view 660",
		"/run/guideway/health.sock root:guideway-speaker 660",
		"/run/guideway/take-over.sock root:root 600",
		"/run/guideway/controller/controller.sock guideway:guideway-operate 660",
		"/run/guideway/controller/controller-view.sock guideway:guideway-view 660",
		"/run/guideway/speaker/speaker.sock guideway-speaker:guideway-view 660",
		"announcing what is desired",
		"+# new\n",
		"applied: config 2 runs\n# new\n/etc/guideway/guideway.yaml root:guideway 640\n",
		"config is good: 1 service, 1 vip, 2 backends\n",
		"wanted and running",
		"member of the group guideway-operate",
		"member of the group guideway-view",
	} {
		if !strings.Contains(said, wanted) {
			t.Errorf("it did not say %q", wanted)
		}
	}
	// That no backend answers is said, too; the config itself has no warning.
	for _, unwanted := range []string{"FAILED", "ALLOWED", "warning: /etc", "start it"} {
		if strings.Contains(said, unwanted) {
			t.Errorf("it said %q", unwanted)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
}

// Of the users who may look, and of one that the socket takes.
func TestAsInstalledNobodyTakesTheSpeakersPlaceAtTheHealthSocket(t *testing.T) {
	m := installed(t)
	said := m.serving(`
for i in $(seq 100); do grep -q 'announcing what is desired' $STAGE/speaker.log && break; sleep 0.1; done
wc -l <$STAGE/speaker.log >$STAGE/before
cat >$STAGE/attack.py <<'END'
import os, pwd, socket, sys, threading, time
user = pwd.getpwnam(sys.argv[1])
os.initgroups(user.pw_name, user.pw_gid); os.setgid(user.pw_gid); os.setuid(user.pw_uid)
end = time.time() + 4
def connected():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(1)
    s.connect('/run/guideway/health.sock')
    return s
def work(forever):
    global asked
    while time.time() < end:
        try:
            s = connected()
            while forever and time.time() < end:
                s.send(b'\x08\x01'); asked += len(s.recv(4096)) > 0; time.sleep(0.01)
        except OSError as e:
            refused.add(e.errno); time.sleep(0.0005)
refused, asked = set(), 0
workers = [threading.Thread(target=work, args=(i < 40,)) for i in range(41)]
for w in workers: w.start()
for w in workers: w.join()
print('asked' if asked else 'refused', sorted(e for e in refused if e))
END
echo "view: $(python3 $STAGE/attack.py alice)"
echo "operate: $(python3 $STAGE/attack.py bob)"
echo "controller: $(python3 $STAGE/attack.py guideway)"
tail -n +$(($(cat $STAGE/before) + 1)) $STAGE/speaker.log
`)
	for _, wanted := range []string{"view: refused [13]", "operate: refused [13]", "controller: asked"} {
		if !strings.Contains(said, wanted) {
			t.Errorf("it did not say %q", wanted)
		}
	}
	if strings.Contains(said, "nothing is announced") {
		t.Error("routes were withdrawn")
	}
	if t.Failed() {
		t.Log(said)
	}
}

// Each line of attacks is tried while the one before is still open.
const attacks = `
memory() { for p in $forwarder $controller $speaker; do sed -n 's/^VmRSS:[^0-9]*\([0-9]*\)[0-9]\{3\} kB/\1/p' /proc/$p/status; done | paste -sd' '; }
held() { # NAME ARGUMENTS: goes on in the background, and has said what became of it
    python3 $STAGE/tree/packaging/testdata/unfinished.py "${@:2}" >$STAGE/$1.out 2>&1 &
    holders+=" $!"
    for i in $(seq 300); do [ -s $STAGE/$1.out ] && break; sleep 0.1; done
    echo "$1: $(cat $STAGE/$1.out)"
}
`

func TestAsInstalledNobodyFillsMemoryWithUnfinishedMessages(t *testing.T) {
	m := installed(t)
	said := m.serving(attacks + `
for i in 1 2 3; do guideway show services >/dev/null; done
before=($(memory))
held plan alice /run/guideway/forwarder-view.sock /guideway.forwarder.v1.Forwarder/SetPlan
held status alice /run/guideway/forwarder-view.sock /guideway.forwarder.v1.Forwarder/GetStatus
held operators bob /run/guideway/forwarder.sock /guideway.forwarder.v1.Forwarder/SetPlan
held routes alice /run/guideway/speaker/speaker.sock /guideway.speaker.v1.Speaker/Set
held state alice /run/guideway/speaker/speaker.sock /guideway.speaker.v1.Speaker/GetState
held config alice /run/guideway/controller/controller-view.sock /guideway.controller.v1.Controller/ApplyConfig
held services alice /run/guideway/controller/controller-view.sock /guideway.controller.v1.Controller/GetState
after=($(memory))
for i in 0 1 2; do (( ${after[i]} <= ${before[i]} + 20 )) || echo "process $i: ${before[i]} MB, then GREW to ${after[i]}"; done
may alice $STAGE/usr/bin/guideway show services
may alice $STAGE/usr/bin/guideway show bgp
`)
	// What is too long for a call that alice may make, the controller reads without
	// keeping it, and refuses at its end.
	for _, attack := range []string{"plan", "status", "operators", "routes", "state", "config"} {
		if !strings.Contains(said, attack+": 8 of 8 refused") {
			t.Errorf("%s: not all were refused", attack)
		}
	}
	if strings.Contains(said, "GREW") || strings.Contains(said, "FAILED") {
		t.Error("memory grew, or others were kept out")
	}
	if t.Failed() {
		t.Log(said)
	}
}

func TestAsInstalledIdleConnectionsKeepNobodyOut(t *testing.T) {
	m := installed(t)
	said := m.serving(attacks + `
held forwarder bob /run/guideway/forwarder.sock
held viewers alice /run/guideway/forwarder-view.sock
held operators bob /run/guideway/controller/controller.sock
held speaker alice /run/guideway/speaker/speaker.sock
kill -9 $controller; wait $controller || true
rm -f /run/guideway/controller/*.sock
setpriv --reuid guideway --regid guideway --init-groups $(command_of guideway-controller) 2>$STAGE/controller.log &
controller=$!
until_serving
cat $STAGE/doctor
may guideway $STAGE/usr/bin/guideway show bgp
may guideway $STAGE/usr/bin/guideway show drops
`)
	if !strings.Contains(said, "wanted and running") || strings.Contains(said, "FAILED") {
		t.Errorf("a restarted controller is kept out: %s", said)
	}
}

// The prober's unit: its command line, and a user without any rights.
func TestAsInstalledTheProberTriesWhatItIsGiven(t *testing.T) {
	m := installed(t)
	said := m.inNetwork(`
set -m
ip link set lo up
cd /
python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 &
server=$!
trap 'kill $server $prober; wait' EXIT
command_of() { sed -n 's/^ExecStart=//p' $STAGE/usr/units/guideway-probe.service | sed "s|\$PROBE_OPTIONS|$1|"; }
as_other="setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all --no-new-privs"
$as_other $(command_of '') 2>&1 || echo "ended with $?"
$as_other $(command_of 'http://127.0.0.1:8000/ --interval 1s --timeout 500ms') 2>&1 &
prober=$!
for i in $(seq 100); do curl -s http://127.0.0.1:9472/metrics | grep '^guideway_probe_answered_ratio.* 1$' && break; sleep 0.1; done
`)
	for _, wanted := range []string{
		"there is no target: give some", "ended with 2\n",
		`guideway_probe_answered_ratio{port="8000",protocol="tcp",service="",target="http://127.0.0.1:8000/",vip="127.0.0.1"} 1`,
	} {
		if !strings.Contains(said, wanted) {
			t.Errorf("it did not say %q: %s", wanted, said)
		}
	}
}
