package members

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guideway/guideway/controller/config"
)

// replies of a server to one question; over TCP the first one is sent.
type replies func(q dnsmessage.Message, network string) []dnsmessage.Message

// serveDNS on one port of UDP and TCP; asked counts the questions.
func serveDNS(t *testing.T, answer replies) (server netip.AddrPort, asked *atomic.Int32) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		tcp.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	asked = &atomic.Int32{}
	repliesTo := func(packet []byte, network string) (packed [][]byte) {
		asked.Add(1)
		var q dnsmessage.Message
		if err := q.Unpack(packet); err != nil {
			t.Errorf("question: %v", err)
			return nil
		}
		for _, reply := range answer(q, network) {
			bytes, err := reply.Pack()
			if err != nil {
				t.Errorf("answer: %v", err)
			}
			packed = append(packed, bytes)
		}
		return packed
	}
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, client, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			for _, reply := range repliesTo(buffer[:n], "udp") {
				_, _ = udp.WriteTo(reply, client)
			}
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			var length [2]byte
			_, _ = io.ReadFull(conn, length[:])
			packet := make([]byte, binary.BigEndian.Uint16(length[:]))
			_, _ = io.ReadFull(conn, packet)
			for _, reply := range repliesTo(packet, "tcp") {
				_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
			conn.Close()
		}
	}()
	return netip.MustParseAddrPort(tcp.Addr().String()), asked
}

func reply(q dnsmessage.Message, records ...dnsmessage.Resource) dnsmessage.Message {
	return dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true},
		Questions: q.Questions, Answers: records,
	}
}

func record(name string, ttl uint32, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: ttl}, Body: body}
}

func a(name string, ttl uint32, last byte) dnsmessage.Resource {
	return record(name, ttl, &dnsmessage.AResource{A: [4]byte{10, 1, 0, last}})
}

func cname(name, to string) dnsmessage.Resource {
	return record(name, 30, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(to)})
}

func srv(priority, weight, port uint16, target string) dnsmessage.Resource {
	return record("_http._tcp.web.internal.", 20, &dnsmessage.SRVResource{Priority: priority, Weight: weight, Port: port, Target: dnsmessage.MustNewName(target)})
}

func readFrom(name string, servers ...netip.AddrPort) (string, time.Duration, error) {
	d := &domain{
		from: config.MemberSource{DNS: name, Port: 80, TTLMin: 5 * time.Second, TTLMax: time.Minute}, ipv4: true,
		servers: func() ([]netip.AddrPort, error) { return servers, nil },
	}
	set, again, err := d.read(context.Background())
	return textOf(set), again, err
}

const web = "web.internal."

func TestANamesAddressesAreMembersForItsTTL(t *testing.T) {
	for what, one := range map[string]struct {
		records []dnsmessage.Resource
		want    string
		again   time.Duration
	}{
		"one":               {[]dnsmessage.Resource{a(web, 30, 1)}, "10.1.0.1", 30 * time.Second},
		"the least TTL":     {[]dnsmessage.Resource{a(web, 30, 1), a(web, 10, 2)}, "10.1.0.1 10.1.0.2", 10 * time.Second},
		"floor":             {[]dnsmessage.Resource{a(web, 0, 1)}, "10.1.0.1", 5 * time.Second},
		"ceiling":           {[]dnsmessage.Resource{a(web, 1<<31, 1)}, "10.1.0.1", time.Minute},
		"none":              {nil, "", 5 * time.Second},
		"an alias":          {[]dnsmessage.Resource{cname(web, "x.internal."), a("X.internal.", 60, 1)}, "10.1.0.1", 30 * time.Second},
		"aliases, disorder": {[]dnsmessage.Resource{a("y.internal.", 60, 1), cname("x.internal.", "y.internal."), cname(web, "x.internal.")}, "10.1.0.1", 30 * time.Second},
		"of another name":   {[]dnsmessage.Resource{a(web, 30, 1), a("evil.example.", 30, 9)}, "10.1.0.1", 30 * time.Second},
		"listed twice":      {[]dnsmessage.Resource{a(web, 30, 1), a(web, 30, 1)}, "10.1.0.1", 30 * time.Second},
	} {
		server, _ := serveDNS(t, func(q dnsmessage.Message, _ string) []dnsmessage.Message {
			return []dnsmessage.Message{reply(q, one.records...)}
		})
		if got, again, err := readFrom("web.internal", server); err != nil || got != one.want || again != one.again {
			t.Errorf("%s: %q again after %s, %v", what, got, again, err)
		}
	}
}

func TestABadAnswerIsNoSet(t *testing.T) {
	withCode := func(code dnsmessage.RCode) replies {
		return func(q dnsmessage.Message, _ string) []dnsmessage.Message {
			m := reply(q)
			m.RCode = code
			return []dnsmessage.Message{m}
		}
	}
	withRecords := func(records ...dnsmessage.Resource) replies {
		return func(q dnsmessage.Message, _ string) []dnsmessage.Message {
			return []dnsmessage.Message{reply(q, records...)}
		}
	}
	for what, one := range map[string]struct {
		answer replies
		want   string
	}{
		"SERVFAIL":   {withCode(dnsmessage.RCodeServerFailure), "A web.internal from 127.0.0.1:"},
		"REFUSED":    {withCode(dnsmessage.RCodeRefused), "answered by REFUSED"},
		"a blocker":  {withRecords(record(web, 30, &dnsmessage.AResource{})), "web.internal has 0.0.0.0: the address is 0.0.0.0, the unspecified address"},
		"alias loop": {withRecords(cname(web, "x.internal."), cname("x.internal.", web)), "more than 16 aliases"},
		"an alias that nobody resolves": {func(q dnsmessage.Message, _ string) []dnsmessage.Message {
			m := reply(q, cname(web, "x.internal."))
			m.RecursionAvailable = false
			return []dnsmessage.Message{m}
		}, "alias of x.internal., which the server does not resolve"},
		"cut by TCP, too": {func(q dnsmessage.Message, _ string) []dnsmessage.Message {
			m := reply(q, a(web, 30, 1))
			m.Truncated = true
			return []dnsmessage.Message{m}
		}, "longer than a DNS message"},
		"nothing by TCP": {func(q dnsmessage.Message, network string) []dnsmessage.Message {
			m := reply(q)
			m.Truncated = true
			if network == "tcp" {
				return nil
			}
			return []dnsmessage.Message{m}
		}, "A web.internal from"},
		"another question by TCP": {func(q dnsmessage.Message, network string) []dnsmessage.Message {
			m := reply(q)
			m.Truncated = true
			if network == "tcp" {
				m.ID++
			}
			return []dnsmessage.Message{m}
		}, "the answer is to another question"},
	} {
		server, _ := serveDNS(t, one.answer)
		if got, _, err := readFrom("web.internal", server); err == nil || got != "" || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: %q, %v, want %q", what, got, err, one.want)
		}
	}
}

func TestANameThatDoesNotExistHasNoMembers(t *testing.T) {
	server, _ := serveDNS(t, func(q dnsmessage.Message, _ string) []dnsmessage.Message {
		m := reply(q)
		m.RCode = dnsmessage.RCodeNameError
		return []dnsmessage.Message{m}
	})
	if got, again, err := readFrom("web.internal", server); err != nil || got != "" || again != 5*time.Second {
		t.Error(got, again, err)
	}
}

func TestAnswersToOtherQuestionsArePassedOver(t *testing.T) {
	server, _ := serveDNS(t, func(q dnsmessage.Message, _ string) []dnsmessage.Message {
		forged := a(web, 30, 66)
		otherID, otherName, otherType, noQuestion, noResponse := reply(q, forged), reply(q, forged), reply(q, forged), reply(q, forged), reply(q, forged)
		otherID.ID ^= 1
		otherName.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("evil.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
		otherType.Questions = []dnsmessage.Question{{Name: q.Questions[0].Name, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}}
		noQuestion.Questions = nil
		noResponse.Response = false
		return []dnsmessage.Message{otherID, otherName, otherType, noQuestion, noResponse, reply(q, a(web, 30, 1))}
	})
	if got, _, err := readFrom("web.internal", server); err != nil || got != "10.1.0.1" {
		t.Error(got, err)
	}
}

func TestNumbersOfQuestionsDiffer(t *testing.T) {
	seen := map[uint16]bool{}
	for range 64 {
		q, err := newQuestion("web.internal", dnsmessage.TypeA)
		if err != nil {
			t.Fatal(err)
		}
		seen[q.id] = true
	}
	if len(seen) < 32 {
		t.Errorf("%d numbers in 64 questions", len(seen))
	}
}

func TestTheNextServerIsAskedWhereOneDoesNotAnswer(t *testing.T) {
	silent, _ := serveDNS(t, func(dnsmessage.Message, string) []dnsmessage.Message { return nil })
	server, _ := serveDNS(t, func(q dnsmessage.Message, _ string) []dnsmessage.Message {
		return []dnsmessage.Message{reply(q, a(web, 30, 1))}
	})
	if got, _, err := readFrom("web.internal", silent, server); err != nil || got != "10.1.0.1" {
		t.Error(got, err)
	}
}

func TestAServerThatIsSilentIsGivenUp(t *testing.T) {
	silent, asked := serveDNS(t, func(dnsmessage.Message, string) []dnsmessage.Message { return nil })
	if _, again, err := readFrom("web.internal", silent); err == nil || again != 5*time.Second || asked.Load() != questionTries {
		t.Error(again, asked.Load(), err)
	}
}

func TestOnlyFamiliesThatTheMachineTunnelsToAreAsked(t *testing.T) {
	server, _ := serveDNS(t, func(q dnsmessage.Message, _ string) []dnsmessage.Message {
		if q.Questions[0].Type == dnsmessage.TypeA {
			return []dnsmessage.Message{reply(q, a(web, 30, 1))}
		}
		return []dnsmessage.Message{reply(q, record(web, 10, &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::1").As16()}))}
	})
	for want, d := range map[string]*domain{"10.1.0.1": {ipv4: true}, "2001:db8::1": {ipv6: true}, "10.1.0.1 2001:db8::1": {ipv4: true, ipv6: true}} {
		d.from = config.MemberSource{DNS: "web.internal", TTLMin: time.Second, TTLMax: time.Minute}
		d.servers = func() ([]netip.AddrPort, error) { return []netip.AddrPort{server}, nil }
		if set, _, err := d.read(t.Context()); err != nil || textOf(set) != want {
			t.Errorf("%q, %v, want %q", textOf(set), err, want)
		}
	}
}

func TestServicesAreTheTargetsOfTheBestPriority(t *testing.T) {
	const name = "_http._tcp.web.internal"
	answer := func(services ...dnsmessage.Resource) replies {
		return func(q dnsmessage.Message, _ string) []dnsmessage.Message {
			if q.Questions[0].Type == dnsmessage.TypeSRV {
				return []dnsmessage.Message{reply(q, services...)}
			}
			target := q.Questions[0].Name.String()
			if target == "gone.internal." {
				return []dnsmessage.Message{reply(q)}
			}
			return []dnsmessage.Message{reply(q, a(target, 40, target[0]-'a'+1))}
		}
	}
	for what, one := range map[string]struct {
		services []dnsmessage.Resource
		want     string
		refused  string
	}{
		"weights":         {services: []dnsmessage.Resource{srv(1, 10, 80, "b.internal."), srv(1, 0, 80, "a.internal."), srv(2, 1, 80, "c.internal.")}, want: "10.1.0.1 10.1.0.2*10"},
		"large weights":   {services: []dnsmessage.Resource{srv(1, 65535, 80, "a.internal."), srv(1, 13107, 80, "b.internal.")}, want: "10.1.0.1*1000 10.1.0.2*200"},
		"no such service": {services: []dnsmessage.Resource{srv(1, 1, 80, ".")}},
		"no address":      {services: []dnsmessage.Resource{srv(1, 1, 80, "gone.internal."), srv(1, 1, 80, "a.internal.")}, want: "10.1.0.1"},
		"another port":    {services: []dnsmessage.Resource{srv(1, 1, 8080, "a.internal.")}, refused: "_http._tcp.web.internal lists a.internal.: it has port 8080, and the pool's `port` is 80"},
	} {
		server, _ := serveDNS(t, answer(one.services...))
		got, again, err := readFrom(name, server)
		switch {
		case one.refused != "":
			if err == nil || !strings.Contains(err.Error(), one.refused) {
				t.Errorf("%s: %v", what, err)
			}
		case err != nil || got != one.want || one.want != "" && again != 20*time.Second:
			t.Errorf("%s: %q again after %s, %v", what, got, again, err)
		}
	}
}

func TestServersOfResolvConf(t *testing.T) {
	for text, want := range map[string]string{
		"# a\nsearch internal\nnameserver 10.0.0.53\nnameserver fe80::1%eth0\n":                "10.0.0.53:53 [fe80::1%eth0]:53",
		"nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n": "10.0.0.1:53 10.0.0.2:53 10.0.0.3:53",
	} {
		servers, err := serversIn([]byte(text))
		var got []string
		for _, s := range servers {
			got = append(got, s.String())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "nameserver dns.internal"} {
		if _, err := serversIn([]byte(text)); err == nil {
			t.Errorf("%q has servers", text)
		}
	}
}

// Whatever a server sends is a set or an error.
func FuzzAnswer(f *testing.F) {
	q, err := newQuestion("web.internal", dnsmessage.TypeA)
	if err != nil {
		f.Fatal(err)
	}
	seed := reply(dnsmessage.Message{Header: dnsmessage.Header{ID: q.id}, Questions: []dnsmessage.Question{q.Question}}, cname(web, "x.internal."), a("x.internal.", 1, 1))
	packed, err := seed.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Fuzz(func(_ *testing.T, reply []byte) {
		q.answeredBy(reply)
		_, _ = q.read(reply)
	})
}
