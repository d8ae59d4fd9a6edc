package check

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// listenForDNS at one port, UDP and TCP: what is free for the one may be taken for the other.
func listenForDNS(t *testing.T) (net.PacketConn, *net.TCPListener) {
	t.Helper()
	var err error
	for range 20 {
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			break
		}
		port := packets.LocalAddr().(*net.UDPAddr).Port
		var listener *net.TCPListener
		if listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); err == nil {
			return packets, listener
		}
		packets.Close()
	}
	t.Fatal(err)
	return nil, nil
}

// serveDNS returns the port, UDP and TCP, of a server that answers by answer:
// messages, in order.
func serveDNS(t *testing.T, answer func(query dnsmessage.Message) [][]byte) uint16 {
	t.Helper()
	packets, listener := listenForDNS(t)
	t.Cleanup(func() { packets.Close() })
	port := packets.LocalAddr().(*net.UDPAddr).Port
	t.Cleanup(func() { listener.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for n, from, err := packets.ReadFrom(buffer); err == nil; n, from, err = packets.ReadFrom(buffer) {
			for _, message := range answer(parseDNS(t, buffer[:n])) {
				packets.WriteTo(message, from)
			}
		}
	}()
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			query := make([]byte, 4096)
			n, _ := io.ReadAtLeast(conn, query, 2)
			for n < 2+int(binary.BigEndian.Uint16(query)) {
				more, _ := conn.Read(query[n:])
				n += more
			}
			for _, message := range answer(parseDNS(t, query[2:n])) {
				conn.Write(binary.BigEndian.AppendUint16(nil, uint16(len(message))))
				conn.Write(message)
			}
			conn.Close()
		}
	}()
	return uint16(port)
}

func parseDNS(t *testing.T, data []byte) (message dnsmessage.Message) {
	if err := message.Unpack(data); err != nil {
		t.Errorf("the question cannot be read: %v", err)
	}
	return message
}

// reply to a question with these records, all of the name in it.
func reply(query dnsmessage.Message, code dnsmessage.RCode, records ...dnsmessage.ResourceBody) []byte {
	query.Response, query.RCode = true, code
	for _, record := range records {
		query.Answers = append(query.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: query.Questions[0].Name, Class: dnsmessage.ClassINET}, Body: record})
	}
	packed, err := query.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

func TestDNSAnswers(t *testing.T) {
	address := &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}
	alias := &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("other.example.")}
	of := func(code dnsmessage.RCode, records ...dnsmessage.ResourceBody) func(dnsmessage.Message) [][]byte {
		return func(query dnsmessage.Message) [][]byte { return [][]byte{reply(query, code, records...)} }
	}
	forged := func(query dnsmessage.Message) [][]byte {
		other := query
		other.ID++
		return [][]byte{reply(other, dnsmessage.RCodeServerFailure), reply(query, dnsmessage.RCodeSuccess, address)}
	}
	truncated := func(query dnsmessage.Message) [][]byte {
		query.Truncated = true
		return [][]byte{reply(query, dnsmessage.RCodeSuccess)}
	}
	echoed := func(query dnsmessage.Message) [][]byte { packed, _ := query.Pack(); return [][]byte{packed} }
	for _, c := range []struct {
		name, network, rcode string
		answer               func(dnsmessage.Message) [][]byte
		text                 string
		ok                   bool
	}{
		{"records", "udp", "NOERROR", of(dnsmessage.RCodeSuccess, address, address), "NOERROR, 2 of type A", true},
		{"records over TCP", "tcp", "NOERROR", of(dnsmessage.RCodeSuccess, address), "NOERROR, 1 of type A", true},
		{"an alias", "udp", "NOERROR", of(dnsmessage.RCodeSuccess, alias), "NOERROR, 1 of type A", true},
		{"no record", "udp", "NOERROR", of(dnsmessage.RCodeSuccess), "no record of type A for www.example.", false},
		{"a failure", "udp", "NOERROR", of(dnsmessage.RCodeServerFailure), "SERVFAIL for www.example. A, wanted NOERROR", false},
		{"refused", "tcp", "NOERROR", of(dnsmessage.RCodeRefused), "REFUSED for www.example. A, wanted NOERROR", false},
		{"a wanted NXDOMAIN", "udp", "NXDOMAIN", of(dnsmessage.RCodeNameError), "NXDOMAIN", true},
		{"success where NXDOMAIN is wanted", "udp", "NXDOMAIN", of(dnsmessage.RCodeSuccess, address), "NOERROR for www.example. A, wanted NXDOMAIN", false},
		{"an unknown code", "udp", "NOERROR", of(dnsmessage.RCode(9)), "response code 9 for www.example. A", false},
		{"a message of another number is passed over", "udp", "NOERROR", forged, "NOERROR, 1 of type A", true},
		{"a truncated answer", "udp", "NOERROR", truncated, "NOERROR", true},
		{"the question comes back", "udp", "NOERROR", echoed, "the answer is no DNS message that answers the question", false},
		{"nothing over TCP", "tcp", "NOERROR", func(dnsmessage.Message) [][]byte { return nil }, "the server closed the connection without an answer", false},
		{"too short over TCP", "tcp", "NOERROR", func(dnsmessage.Message) [][]byte { return [][]byte{{1}} }, "the answer is no DNS message", false},
		{"half an answer", "udp", "NOERROR", func(q dnsmessage.Message) [][]byte {
			return [][]byte{reply(q, dnsmessage.RCodeSuccess, address)[:40]}
		}, "the answer cannot be read", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := uint32(serveDNS(t, c.answer))
			check := readDNS(&configv1.DnsCheck{Port: &port, Name: "www.example", Protocol: &c.network, Rcode: &c.rcode}, reader{t: t})
			answer, err := check.Probe(t.Context(), loopback)
			text := answer.Text
			if err != nil {
				text = err.Error()
			}
			if (err == nil) != c.ok || !strings.HasPrefix(text, c.text) {
				t.Errorf("got %q, wanted %q", text, c.text)
			}
		})
	}
}

func TestMistakesInDNSNamesAreReported(t *testing.T) {
	for name, problem := range map[string]string{
		"www..example":                "has nothing between two dots",
		"a b.example":                 "has a space",
		strings.Repeat("x", 64):       "has more than 63 characters between two dots",
		strings.Repeat("abcd.", 60):   "is longer than 253 characters",
		"www.example":                 "",
		"www.example.":                "",
		".":                           "",
		"_dns.resolver.arpa":          "",
		strings.Repeat("x", 63) + ".": "",
	} {
		problems := problemsOf(t, &configv1.HealthCheck{Dns: &configv1.DnsCheck{Name: name}}, nil)
		if (len(problems) > 0) != (problem != "") || problem != "" && !strings.Contains(problems[0], "which "+problem+": give a domain name") {
			t.Errorf("%q: got %q, wanted %q", name, problems, problem)
		}
	}
}
