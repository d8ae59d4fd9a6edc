package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a mount namespace with copies of /etc, /run and /var/lib: what
// the installer does to it, it does to nothing else.
type machine struct {
	t     *testing.T
	stage string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: installs into a mount namespace of its own")
	}
	m := machine{t: t, stage: t.TempDir()}
	for _, dir := range []string{"etc", "run", "lib", "usr", "tree/bin"} {
		if err := os.MkdirAll(filepath.Join(m.stage, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.host("cp -a /etc/. $STAGE/etc; rm -rf $STAGE/etc/guideway")
	// A machine that had Guideway before has its users.
	m.host("for f in passwd group shadow gshadow; do sed -i -E '/^guideway/d; s/guideway[^:,]*,?//g' $STAGE/etc/$f; done")
	m.host("mkdir $STAGE/tree/tools; cp install_test.go $STAGE; cp ../tools/install.sh $STAGE/tree/tools; cp -a ../packaging $STAGE/tree")
	m.host("for p in guideway guideway-forwarder guideway-agent guideway-lab; do printf '#!/bin/sh\\n' >$STAGE/tree/bin/$p; chmod 755 $STAGE/tree/bin/$p; done")
	return m
}

const mounts = "mount --bind $STAGE/etc /etc; mount --bind $STAGE/run /run; mount --bind $STAGE/lib /var/lib;"

// host runs a script here.
func (m machine) host(script string) {
	m.t.Helper()
	m.sh(exec.Command("bash", "-ec", script))
}

// inside runs a script in the namespace, and gives what it said.
func (m machine) inside(script string) string {
	m.t.Helper()
	return m.sh(exec.Command("unshare", "-m", "bash", "-ec", mounts+script))
}

// inNetwork is inside, with no interface but those that the script makes.
func (m machine) inNetwork(script string) string {
	m.t.Helper()
	return m.sh(exec.Command("unshare", "-m", "-n", "bash", "-ec", mounts+script))
}

func (m machine) sh(command *exec.Cmd) string {
	m.t.Helper()
	command.Env = append(os.Environ(), "STAGE="+m.stage)
	out, err := command.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%v: %v\n%s", command.Args, err, out)
	}
	return string(out)
}

func (m machine) install() string {
	m.t.Helper()
	return m.inside("$STAGE/tree/tools/install.sh '' $STAGE/usr /etc $STAGE/usr/units $STAGE/usr/sysusers $STAGE/usr/tmpfiles")
}

// owns asserts lines of `path user:group mode`.
func (m machine) owns(wanted ...string) {
	m.t.Helper()
	for _, line := range wanted {
		path, _, _ := strings.Cut(line, " ")
		if got := strings.TrimSpace(m.inside("stat -c '%n %U:%G %a' " + path)); got != line {
			m.t.Errorf("%s, wanted %s", got, line)
		}
	}
}

var ownersWanted = []string{
	"/run/guideway root:root 755",
	"/run/guideway/agent root:root 700",
	"/run/guideway/controller guideway:guideway 755",
	"/var/lib/guideway guideway:guideway 700",
	"/var/lib/guideway-forwarder root:root 700",
	"/etc/guideway/cluster.key root:guideway 640",
	"/etc/guideway/guideway.yaml root:guideway 640",
	"/etc/guideway/agent.yaml root:root 644",
}

func TestInstallMakesUsersDirectoriesAndASecretThatStays(t *testing.T) {
	m := newMachine(t)
	said := m.install()
	if !strings.Contains(said, "made /etc/guideway/cluster.key") || !strings.Contains(said, "all machines of a cluster need the same") {
		t.Errorf("it said %s", said)
	}
	m.owns(ownersWanted...)
	// The lab is for people who try things, not for machines that forward.
	if programs := m.inside("ls $STAGE/usr/bin"); programs != "guideway\nguideway-agent\nguideway-forwarder\n" {
		t.Errorf("programs installed: %s", programs)
	}
	if groups := m.inside("id -nG guideway"); strings.TrimSpace(groups) != "guideway guideway-view guideway-operate guideway-speaker" {
		t.Errorf("the controller's groups are %s", groups)
	}
	if members := m.inside("getent group guideway | cut -d: -f4"); strings.TrimSpace(members) != "" {
		t.Errorf("members of guideway: %s", members)
	}
	key := m.inside("cat /etc/guideway/cluster.key")
	if len(strings.TrimSpace(key)) != 44 {
		t.Errorf("a secret of %d characters", len(key))
	}
	m.inside("echo mine >/etc/guideway/guideway.yaml")
	if said := m.install(); !strings.Contains(said, "cluster.key stays as it is") {
		t.Errorf("the second time it said %s", said)
	}
	m.owns(ownersWanted...)
	// What somebody chose stays, as the file itself does.
	m.inside("chown root:guideway-operate /etc/guideway/guideway.yaml; chmod 664 /etc/guideway/guideway.yaml")
	m.install()
	m.owns("/etc/guideway/guideway.yaml root:guideway-operate 664")
	if again := m.inside("cat /etc/guideway/cluster.key /etc/guideway/guideway.yaml"); again != key+"mine\n" {
		t.Errorf("secret or config changed to %s", again)
	}
}

// What version 0.1.0 installed: one state directory and one run directory for
// both processes and their group, of which people are members.
const oldLayout = `
groupadd --system guideway; useradd --system -g guideway guideway; useradd alice; gpasswd -a alice guideway >/dev/null
install -d -m 1770 -g guideway /run/guideway /var/lib/guideway
install -m 600 /dev/null /run/guideway/controller.lock
echo '{"generation":"7"}' >/var/lib/guideway/plan.json; chmod 600 /var/lib/guideway/plan.json
echo '{}' >/var/lib/guideway/drains.json; chown guideway:guideway /var/lib/guideway/drains.json
mkdir /etc/guideway; echo 'machine: {addresses: [10.0.0.1]}' >/etc/guideway/guideway.yaml
`

func TestInstallMovesWhatAnOlderVersionLeft(t *testing.T) {
	m := newMachine(t)
	m.inside(oldLayout)
	said := m.install()
	for _, wanted := range []string{
		"moved the forwarder's last plan to /var/lib/guideway-forwarder/plan.json",
		"alice is in the group guideway-operate now, and no longer in guideway",
		// Its machines agree on a key now; another one would move every connection.
		"no secret made: the config does not name /etc/guideway/cluster.key",
	} {
		if !strings.Contains(said, wanted) {
			t.Errorf("it did not say %q: %s", wanted, said)
		}
	}
	m.owns("/etc/guideway/guideway.yaml root:guideway 640", "/run/guideway root:root 755", "/var/lib/guideway guideway:guideway 700", "/var/lib/guideway-forwarder root:root 700",
		"/var/lib/guideway-forwarder/plan.json root:root 600", "/var/lib/guideway/drains.json guideway:guideway 644")
	if groups := m.inside("id -nG alice"); strings.TrimSpace(groups) != "alice guideway-operate" {
		t.Errorf("alice's groups are %s", groups)
	}
	if left := m.inside("ls /var/lib/guideway /run/guideway; test ! -e /etc/guideway/cluster.key"); strings.Contains(left, "plan.json") || strings.Contains(left, "lock") {
		t.Errorf("left: %s", left)
	}
}

// A plan that the group could have put there is not the forwarder's.
func TestInstallMovesNoPlanOfSomebodyElse(t *testing.T) {
	m := newMachine(t)
	m.inside(oldLayout + "chown guideway /var/lib/guideway/plan.json")
	m.install()
	m.inside("test ! -e /var/lib/guideway-forwarder/plan.json")
	m = newMachine(t)
	m.inside(oldLayout + "ln -sf /etc/shadow /var/lib/guideway/plan.json")
	m.install()
	m.inside("test ! -e /var/lib/guideway-forwarder/plan.json")
}

func TestUninstallRemovesWhatWasInstalledAndNothingElse(t *testing.T) {
	m := newMachine(t)
	m.install()
	m.inside("echo mine >$STAGE/usr/share/guideway/mine; echo mine >/etc/guideway/guideway.yaml")
	said := m.inside("$STAGE/tree/tools/install.sh --remove $STAGE/usr")
	if !strings.Contains(said, "configs and the secret") || !strings.Contains(said, "stay") {
		t.Errorf("it said %s", said)
	}
	if left := m.inside("cd $STAGE/usr; find . -type f"); left != "./share/guideway/mine\n" {
		t.Errorf("left: %s", left)
	}
	if kept := m.inside("cat /etc/guideway/guideway.yaml; test -s /etc/guideway/cluster.key"); kept != "mine\n" {
		t.Errorf("the config is %s", kept)
	}
	if said := m.inside("$STAGE/tree/tools/install.sh --remove $STAGE/usr 2>&1 || true"); !strings.Contains(said, "nothing was installed there, or by a package") {
		t.Errorf("the second time it said %s", said)
	}
}
