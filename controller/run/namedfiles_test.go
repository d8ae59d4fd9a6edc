package run

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestAFileThatTheConfigNamesIsReadAnewWhenItChanges(t *testing.T) {
	h := newHarness(t)
	authority := looptest.NewAuthority(t)
	template := looptest.Named("web-1")
	template.IPAddresses = []net.IP{net.IPv4(10, 1, 0, 11)}
	certificate, err := tls.X509KeyPair(authority.Issue(template))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "0.0.0.0:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake() // the probe says how it went
			conn.Close()
		}
	}()
	ca := filepath.Join(h.dir, "backends.crt")
	looptest.WriteFile(t, ca, looptest.NewAuthority(t).Certificate)
	checked := fmt.Sprintf("tls: {port: %d, ca_file: backends.crt}", listener.Addr().(*net.TCPAddr).Port)
	config := strings.Replace(h.config(""), fmt.Sprintf("http: {port: %d}", h.backend.port), checked, 1)
	h.write(config)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("another authority's backend is down", backendState("web-1", "down"))

	// A config that is edited meanwhile waits for a reload.
	h.write(config + "# edited\ntunnel: {mtu: 1400}\n")
	looptest.WriteFile(t, ca, authority.Certificate)
	h.until("the right authority's is active", backendState("web-1", "active"))
	if h.peer.running().GetTunnel().GetMtu() != 0 {
		t.Error("the edited config is in use")
	}
	looptest.WriteFile(t, ca, []byte("nothing"))
	audit := func() string {
		lines, _ := os.ReadFile(filepath.Join(h.stateDir(), "audit.log"))
		return string(lines)
	}
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(audit(), `"from":"a file that the config names","call":"Reload","result":"failed","error":"`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a bad file is not told: %s", audit())
		}
	}
	h.until("the config goes on", func(s *controllerv1.GetStateResponse) bool {
		return !s.Config.Stale && backendState("web-1", "active")(s)
	})
	h.stop()
}
