package check

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// DNS passes when a question is answered with the wanted response code and, for
// success, a record.
type DNS struct {
	Port uint16
	// With the dot at its end.
	Name string
	Type dnsmessage.Type
	Code dnsmessage.RCode
	// "udp" or "tcp".
	Network string
}

const (
	dnsPort = 53
	// One that is larger cannot be sent (RFC 1035 section 2.3.4).
	dnsNameMax, dnsLabelMax = 253, 63
)

var dnsTypes = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX, "NS": dnsmessage.TypeNS,
	"PTR": dnsmessage.TypePTR, "SOA": dnsmessage.TypeSOA, "SRV": dnsmessage.TypeSRV, "TXT": dnsmessage.TypeTXT,
}

var dnsCodes = map[string]dnsmessage.RCode{
	"NOERROR": dnsmessage.RCodeSuccess, "NXDOMAIN": dnsmessage.RCodeNameError, "REFUSED": dnsmessage.RCodeRefused,
}

func readDNS(given *configv1.DnsCheck, reader Reader) DNS {
	name := strings.TrimSuffix(given.GetName(), ".")
	check := DNS{
		Port:    uint16(cmp.Or(given.GetPort(), dnsPort)),
		Name:    name + ".",
		Type:    dnsTypes[cmp.Or(given.GetType(), "A")],
		Code:    dnsCodes[cmp.Or(given.GetRcode(), "NOERROR")],
		Network: cmp.Or(given.GetProtocol(), "udp"),
	}
	// A name of the root alone is a dot.
	if problem := ProblemOfName(name); problem != "" && given.GetName() != "." {
		reader.Errorf("dns.name", "is %q, which %s: give a domain name, like www.example.com", given.GetName(), problem)
	}
	return check
}

// ProblemOfName is empty for a name that can be sent.
func ProblemOfName(name string) string {
	if len(name) > dnsNameMax {
		return fmt.Sprintf("is longer than %d characters", dnsNameMax)
	}
	if hasSpace(name) {
		return "has a space"
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "" && name != "":
			return "has nothing between two dots"
		case len(label) > dnsLabelMax:
			return fmt.Sprintf("has more than %d characters between two dots", dnsLabelMax)
		}
	}
	return ""
}

func (c DNS) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	query, err := c.query(uint16(rand.Uint32()))
	if err != nil {
		return Answer{}, fmt.Errorf("make the question: %w", err)
	}
	conn, err := dialer.Dial(ctx, c.Network, c.Port)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	reply, err := ExchangeDNS(conn, c.Network, query, func(reply []byte) bool { return sameID(query, reply) })
	if err != nil {
		return Answer{}, err
	}
	return c.judge(query, reply)
}

func (c DNS) query(id uint16) ([]byte, error) {
	name, err := dnsmessage.NewName(c.Name)
	if err != nil {
		return nil, err
	}
	message := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: c.Type, Class: dnsmessage.ClassINET}},
	}
	return message.Pack()
}

// ExchangeDNS sends a question and returns the message that came for it. Over UDP those
// that do not answer it are passed over: they may be late, forged, or belong elsewhere.
func ExchangeDNS(conn net.Conn, network string, query []byte, answers func(reply []byte) bool) ([]byte, error) {
	if network == "tcp" {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	if network == "tcp" {
		return readDNSOverTCP(conn)
	}
	buffer := make([]byte, 4<<10)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		if answers(buffer[:n]) {
			return buffer[:n], nil
		}
	}
}

// sameID: a message has the number of a question.
func sameID(query, reply []byte) bool {
	return len(reply) >= 2 && reply[0] == query[0] && reply[1] == query[1]
}

// readDNSOverTCP reads one message: the message's length stands before it (RFC 1035 section 4.2.2).
func readDNSOverTCP(conn net.Conn) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, earlyEnd(err)
	}
	reply := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return nil, earlyEnd(err)
	}
	return reply, nil
}

func (c DNS) judge(query, reply []byte) (Answer, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(reply)
	if err != nil || !header.Response || !sameID(query, reply) {
		return Answer{}, fmt.Errorf("the answer is no DNS message that answers the question: %s", excerpt(reply))
	}
	if header.RCode != c.Code {
		return Answer{}, fmt.Errorf("%s for %s %s, wanted %s", CodeName(header.RCode), c.Name, typeName(c.Type), CodeName(c.Code))
	}
	if c.Code != dnsmessage.RCodeSuccess || header.Truncated { // what did not fit are records
		return Answer{Text: CodeName(header.RCode)}, nil
	}
	records, err := c.countRecords(&parser)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("the answer cannot be read: %w", err)
	case records == 0:
		return Answer{}, fmt.Errorf("no record of type %s for %s", typeName(c.Type), c.Name)
	}
	return Answer{Text: fmt.Sprintf("%s, %d of type %s", CodeName(header.RCode), records, typeName(c.Type))}, nil
}

// countRecords of the type, and aliases: whether their targets exist is for the
// servers of those.
func (c DNS) countRecords(parser *dnsmessage.Parser) (records int, err error) {
	if err := parser.SkipAllQuestions(); err != nil {
		return 0, err
	}
	for {
		record, err := parser.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return records, nil
		}
		if err == nil {
			err = parser.SkipAnswer()
		}
		if err != nil {
			return 0, err
		}
		if record.Type == c.Type || record.Type == dnsmessage.TypeCNAME {
			records++
		}
	}
}

func typeName(t dnsmessage.Type) string { return strings.TrimPrefix(t.String(), "Type") }

// CodeName as servers and tools spell it.
func CodeName(code dnsmessage.RCode) string {
	for name, one := range dnsCodes {
		if one == code {
			return name
		}
	}
	names := map[dnsmessage.RCode]string{dnsmessage.RCodeFormatError: "FORMERR", dnsmessage.RCodeServerFailure: "SERVFAIL", dnsmessage.RCodeNotImplemented: "NOTIMP"}
	return cmp.Or(names[code], fmt.Sprintf("response code %d", code))
}
