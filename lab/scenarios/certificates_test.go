package scenarios_test

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
)

// certificates of one authority, in a directory.
type certificates struct {
	dir       string
	authority *looptest.Authority
}

// newCertificates has the authority's own: ca.crt.
func newCertificates(t *testing.T, dir string) certificates {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := certificates{dir, looptest.NewAuthority(t)}
	looptest.WriteFile(t, c.file("ca.crt"), c.authority.Certificate)
	return c
}

func (c certificates) file(name string) string { return filepath.Join(c.dir, name) }

// issue a certificate: NAME.crt and NAME.key.
func (c certificates) issue(t *testing.T, name string, template x509.Certificate) {
	t.Helper()
	certificate, key := c.authority.Issue(template)
	looptest.WriteFile(t, c.file(name+".crt"), certificate)
	looptest.WriteFile(t, c.file(name+".key"), key)
}

const apiPort = 9471

// serveAPI over TCP on each machine, to the one operator who is its admin. It returns what
// each machine's config needs for it.
func (c certificates) serveAPI(t *testing.T, running *hosts.Lab) (own func(topology.Node) string) {
	t.Helper()
	c.issue(t, "operator", looptest.Named("operator"))
	for _, n := range running.Network.LoadBalancers {
		template := looptest.Named("api." + n.Name)
		template.IPAddresses = append(template.IPAddresses, n.Address(0).AsSlice())
		c.issue(t, "api-"+n.Name, template)
	}
	return func(n topology.Node) string {
		return fmt.Sprintf("api: {listen: \"%s:%d\", tls: {cert_file: %q, key_file: %q, ca_file: %q}, roles: {admin: [operator]}}\n",
			n.Address(0), apiPort, c.file("api-"+n.Name+".crt"), c.file("api-"+n.Name+".key"), c.file("ca.crt"))
	}
}

// operatorFlags show that the operator asks.
func (c certificates) operatorFlags() []string {
	return []string{"--cert-file", c.file("operator.crt"), "--key-file", c.file("operator.key"), "--ca-file", c.file("ca.crt")}
}
