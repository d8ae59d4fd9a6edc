package check

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/looptest"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

func trusting(t *testing.T, a *looptest.Authority) *Authorities {
	t.Helper()
	read, err := AuthoritiesOf(a.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// issue a certificate for names and addresses, valid for some time from an hour
// before from.
func issue(a *looptest.Authority, from time.Time, valid time.Duration, names ...string) tls.Certificate {
	template := looptest.Named("the server")
	template.NotBefore, template.NotAfter, template.IPAddresses = from.Add(-time.Hour), from.Add(valid), []net.IP{}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.IssueTLS(template)
}

// serveTLS returns the port of a server that greets by HTTP.
func serveTLS(t *testing.T, config *tls.Config) uint16 {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	return serveHTTP(t, listener, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("for " + r.Host + " by " + r.TLS.ServerName))
	})
}

func serveHTTP(t *testing.T, listener net.Listener, handler http.HandlerFunc) uint16 {
	t.Helper()
	server := &http.Server{Handler: handler, ErrorLog: discarded}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return netip.MustParseAddrPort(listener.Addr().String()).Port()
}

var loopback = Dialer{Address: netip.MustParseAddr("127.0.0.1")}

func TestCertificatesOfServers(t *testing.T) {
	now, year := time.Now(), 366*24*time.Hour+time.Minute
	ca, other := looptest.NewAuthority(t), looptest.NewAuthority(t)
	good := Certificate{ServerName: "web.example", Authorities: trusting(t, ca), ExpiryDays: 14}
	named := func(name string) Certificate { c := good; c.ServerName = name; return c }
	warned := func(days uint32) Certificate { c := good; c.ExpiryDays = days; return c }
	cases := []struct {
		name   string
		served tls.Certificate
		check  Certificate
		text   string // of the answer or of the error
		ok     bool
		warns  bool
	}{
		{"a good one passes", issue(ca, now, year, "web.example"), good, "TLS 1.3, certificate expires in 366 days", true, false},
		{"one for another name fails and both are named", issue(ca, now, year, "a.example", "10.0.0.1"), good,
			"the certificate is for a.example, 10.0.0.1, not for web.example", false, false},
		{"without names it is for none", issue(ca, now, year), good, "the certificate is for no name or address (its subject, CN=the server", false, false},
		{"the address, where no name is given", issue(ca, now, year, "127.0.0.1"), named(""), "TLS 1.3", true, false},
		{"another address fails", issue(ca, now, year, "127.0.0.2"), named(""), "the certificate is for 127.0.0.2, not for 127.0.0.1", false, false},
		{"signed by another authority", issue(other, now, year, "web.example"), good,
			"the certificate of the server is signed by CN=test authority, which is not among those of ca_file", false, false},
		{"not signed by the system's", issue(ca, now, year, "web.example"), Certificate{ServerName: "web.example"},
			"which is not among the system's authorities: name the authority's file in ca_file", false, false},
		{"an expired one", issue(ca, now.Add(-year), year/2, "web.example"), good, "the certificate of the server expired on ", false, false},
		{"one of the future", issue(ca, now.Add(year), year, "web.example"), good, "the certificate of the server is valid from ", false, false},
		{"any passes unverified", issue(other, now.Add(-year), year/2, "b.example"), Certificate{Unverified: true, ExpiryDays: 14}, "TLS 1.3, certificate expires in -184 days", true, true},
		{"one that expires soon is warned of", issue(ca, now, 5*24*time.Hour+time.Minute, "web.example"), good, "certificate expires in 5 days", true, true},
		{"but not before the days that are given", issue(ca, now, 5*24*time.Hour+time.Minute, "web.example"), warned(5), "certificate expires in 5 days", true, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			port := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{c.served}})
			answer, err := TLS{Port: port, Certificate: c.check}.Probe(t.Context(), loopback)
			text := answer.Text
			if err != nil {
				text = err.Error()
			}
			if (err == nil) != c.ok || !strings.Contains(text, c.text) {
				t.Errorf("got %q", text)
			}
			if (answer.Warning != "") != c.warns || c.warns && !strings.Contains(answer.Warning, "the certificate of the server expires in ") {
				t.Errorf("warns %q", answer.Warning)
			}
			if c.ok && answer.Expires.Sub(now) > year+time.Minute {
				t.Errorf("expires %v", answer.Expires)
			}
		})
	}
}

func TestHTTPSSendsItsHostAsServerName(t *testing.T) {
	ca := looptest.NewAuthority(t)
	port := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{issue(ca, time.Now(), time.Hour, "web.example", "sni.example", "127.0.0.1")}})
	files := map[string][]byte{"ca.pem": ca.Certificate}
	file := "ca.pem"
	for _, c := range []struct {
		host, name, body string
	}{
		{"web.example", "", "for web.example by web.example"},
		{"web.example:8443", "", "for web.example:8443 by web.example"},
		{"web.example", "sni.example", "for web.example by sni.example"},
		{"", "", "for 127.0.0.1:"},
	} {
		given := &configv1.HttpsCheck{Port: uint32(port), Body: &c.body, Tls: &configv1.Tls{CaFile: &file}}
		if c.host != "" {
			given.Host = &c.host
		}
		if c.name != "" {
			given.Tls.ServerName = &c.name
		}
		answer, err := readHTTPS(given, reader{t: t, files: files}).Probe(t.Context(), loopback)
		if err != nil || answer.Text != "status 200, TLS 1.3, certificate expires in 0 days" || answer.Warning == "" {
			t.Errorf("host %q, name %q: %+v, %v", c.host, c.name, answer, err)
		}
	}
}

func TestServersThatDoNotSpeakTLSAreToldSo(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := serveHTTP(t, plain, func(http.ResponseWriter, *http.Request) {})
	_, err = TLS{Port: port}.Probe(t.Context(), loopback)
	if err == nil || err.Error() != "the server does not speak TLS on this port" {
		t.Errorf("got %v", err)
	}
	_, err = TLS{Port: serveOnce(t, "")}.Probe(t.Context(), loopback)
	if err == nil || err.Error() != "the server closed the connection during the TLS handshake" {
		t.Errorf("got %v", err)
	}
}

func TestMistakesInTLSFieldsAreReported(t *testing.T) {
	ca := looptest.NewAuthority(t)
	no, spaced := false, "a b"
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	files := map[string][]byte{"ca.pem": ca.Certificate, "empty": nil, "key.pem": key, "broken.pem": broken}
	file := func(name string) *configv1.Tls { return &configv1.Tls{CaFile: &name} }
	for _, c := range []struct {
		given *configv1.Tls
		text  string
	}{
		{file("empty"), "https.tls.ca_file empty holds no certificate: give certificates of authorities as PEM"},
		{file("key.pem"), "https.tls.ca_file key.pem holds keys or the like, and no certificate"},
		{file("broken.pem"), "https.tls.ca_file broken.pem has a certificate that cannot be read"},
		{&configv1.Tls{CaFile: file("ca.pem").CaFile, Verify: &no}, "https.tls.ca_file is given beside verify: false"},
		{&configv1.Tls{ServerName: &spaced}, `https.tls.server_name is "a b": give a host name, without spaces`},
	} {
		problems := problemsOf(t, &configv1.HealthCheck{Https: &configv1.HttpsCheck{Port: 1, Tls: c.given}}, files)
		if len(problems) != 1 || !strings.HasPrefix(problems[0], c.text) {
			t.Errorf("got %q, wanted %q", problems, c.text)
		}
	}
}
