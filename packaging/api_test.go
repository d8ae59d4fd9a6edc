package packaging

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/looptest"
)

// apiMachine is a controller, and the certificates of docs/api.md.
type apiMachine struct {
	t            *testing.T
	dir, address string
	program      string
}

func newAPIMachine(t *testing.T) *apiMachine {
	t.Helper()
	program := looptest.Program(t, "guideway")
	m := &apiMachine{t: t, dir: t.TempDir(), address: looptest.FreeAddress(t), program: program}
	page, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	typed := typedOpenssl(string(page))
	m.bash(typed)
	// One more, for who only looks.
	_, alices, _ := strings.Cut(typed, "/CN=lb-1")
	alices = alices[strings.Index(alices, "openssl req"):]
	m.bash(strings.ReplaceAll(strings.ReplaceAll(alices, "alice", "monitoring"), "-addext subjectAltName=email:monitoring@example.org ", ""))
	_, yaml, _ := strings.Cut(string(page), "```yaml\n")
	yaml, _, _ = strings.Cut(yaml, "```")
	m.write("guideway.yaml", m.here(yaml)+fmt.Sprintf(`
machine: {name: lb-1, addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}, {name: web-2, address: 10.1.0.12}]}]
metrics: {listen: "%s"}
`, looptest.FreeAddress(t)))
	return m
}

// here has this test's address where the docs have 10.0.0.1.
func (m *apiMachine) here(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "10.0.0.1:9471", m.address), "IP:10.0.0.1", "IP:127.0.0.1")
}

func (m *apiMachine) write(name, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *apiMachine) read(name string) string {
	data, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		m.t.Error(err)
	}
	return string(data)
}

func (m *apiMachine) bash(script string) string {
	m.t.Helper()
	command := exec.Command("bash", "-ec", m.here(script))
	command.Dir = m.dir
	out, err := command.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s\n%v %s", script, err, out)
	}
	return string(out)
}

func (m *apiMachine) start() {
	m.t.Helper()
	var log bytes.Buffer
	command := exec.Command(m.program, "controller", "--config", "guideway.yaml", "--run-dir", "run", "--state-dir", "state")
	command.Dir, command.Stderr = m.dir, &log
	if err := command.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
		if m.t.Failed() {
			m.t.Log(log.String())
		}
	})
	m.eventually("the controller answers over TCP", func() bool { return m.shownSerial() != "" })
}

func (m *apiMachine) eventually(what string, holds func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			m.t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shownSerial of the certificate that the controller shows.
func (m *apiMachine) shownSerial() string {
	conn, err := tls.Dial("tcp", m.address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// as runs the CLI on another machine, so to speak, by a person's certificate.
func (m *apiMachine) as(person string, args ...string) (string, error) {
	command := exec.Command(m.program, append(args, "--server", m.address)...)
	command.Dir = m.dir
	command.Env = append(os.Environ(), "GUIDEWAY_CERT_FILE="+person+".crt", "GUIDEWAY_KEY_FILE="+person+".key", "GUIDEWAY_CA_FILE=api-ca.crt")
	out, err := command.CombinedOutput()
	return string(out), err
}

func TestOperatorsOfOtherMachinesDoWhatTheirCertificatesAllow(t *testing.T) {
	m := newAPIMachine(t)
	m.start()
	if out, err := m.as("alice", "drain", "backend", "web-1"); err != nil {
		t.Errorf("alice's drain: %v %s", err, out)
	}
	if out, err := m.as("monitoring", "show", "backends"); err != nil || !strings.Contains(out, "web-1") || !strings.Contains(out, "draining") {
		t.Errorf("what monitoring sees: %v %s", err, out)
	}
	out, err := m.as("monitoring", "drain", "backend", "web-2")
	if err == nil || !strings.Contains(out, "the certificate of monitoring has the role view, and this needs operate") {
		t.Errorf("monitoring's drain: %v %s", err, out)
	}
	if out, err := m.as("alice", "drain", "backend", "wbe-1"); err == nil || !strings.Contains(out, `did you mean "web-1"?`) {
		t.Errorf("a misspelt backend: %v %s", err, out)
	}
	page, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, typed, _ := strings.Cut(string(page), "\n    curl -sS --cacert ")
	typed, _, _ = strings.Cut("curl -sS --cacert "+typed, "\n\n")
	if out := m.bash(typed); out != `{"warnings":[]}` {
		t.Errorf("the docs' curl: %s", out)
	}

	audit := m.read("state/audit.log")
	for _, want := range []string{
		`"user":"alice@example.org"`, `"role":"operate"`, `"from":"127.0.0.1:`, `"call":"DrainBackend","request":{"backend":"web-1","drain":true,"force":false,"fleet":false},"result":"done"`,
		`"user":"monitoring"`, `"call":"DrainBackend","result":"refused","error":"the certificate of monitoring has the role view`,
	} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit log lacks %s\n%s", want, audit)
		}
	}

	// Renewed on disk: in use without a restart or reload.
	former := m.shownSerial()
	_, renewal, _ := strings.Cut(string(page), "-keyout api-ca.key -out api-ca.crt\n")
	renewal, _, _ = strings.Cut(renewal, "-out api.crt")
	m.bash(renewal + "-out api.crt")
	m.eventually("the renewed certificate", func() bool { serial := m.shownSerial(); return serial != "" && serial != former })
	if out, err := m.as("alice", "undrain", "backend", "web-1"); err != nil {
		t.Errorf("with the renewed certificate: %v %s", err, out)
	}

	// Another authority's: refused in words on both sides.
	m.bash(`mkdir other; cd other; ` + strings.ReplaceAll(typedOpenssl(string(page)), "alice", "eve"))
	m.bash("cp other/eve.* .")
	out, err = m.as("eve", "show", "services")
	if err == nil || !strings.Contains(out, "refuses the certificate eve.crt: unknown certificate authority") {
		t.Errorf("eve: %v %s", err, out)
	}
	command := exec.Command(m.program, "show", "services", "--server", m.address, "--cert-file", "alice.crt", "--key-file", "alice.key", "--ca-file", "other/api-ca.crt")
	command.Dir = m.dir
	if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), "shows a certificate that is not good") {
		t.Errorf("a controller of another authority: %v %s", err, out)
	}
}

func typedOpenssl(page string) string {
	_, from, _ := strings.Cut(page, "\n    openssl req ")
	typed, _, _ := strings.Cut("openssl req "+from, "\n\n")
	return typed
}
