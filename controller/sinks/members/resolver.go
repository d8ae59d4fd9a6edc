package members

// A stub resolver (RFC 1035), because the system's resolver does not return the TTL.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/config"
)

const (
	// One question to one server; they are asked in turn, each so many times.
	questionTimeout = 2 * time.Second
	questionTries   = 2
	// What servers may send by UDP: no path cuts it (DNS flag day 2020). More comes by TCP,
	// where a message has 64 KiB at most.
	udpBytesMax = 1232
	// Of aliases, one after the other.
	aliasesMax = 16
	serversMax = 3
)

const resolvConf = "/etc/resolv.conf"

// systemServers are those of the machine, in order.
func systemServers() ([]netip.AddrPort, error) {
	data, _, err := config.ReadFromDisk(resolvConf)
	if err != nil {
		return nil, err
	}
	return serversIn(data)
}

func serversIn(data []byte) (servers []netip.AddrPort, err error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() && len(servers) < serversMax {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(words[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resolvConf, err)
		}
		servers = append(servers, netip.AddrPortFrom(address, 53))
	}
	if len(servers) == 0 {
		return nil, fmt.Errorf("%s names no server", resolvConf)
	}
	return servers, nil
}

type resolver struct{ servers []netip.AddrPort }

// answer to a question; without records: there are none.
type answer struct {
	addresses []netip.Addr
	services  []dnsmessage.SRVResource
	ttl       time.Duration
}

// ask the servers in turn, until one says what records there are, or that there are none.
func (r resolver) ask(ctx context.Context, name string, kind dnsmessage.Type) (found answer, err error) {
	for range questionTries {
		for _, server := range r.servers {
			if found, err = askServer(ctx, server, name, kind); err == nil {
				return found, nil
			}
			err = fmt.Errorf("%s %s from %s: %w", strings.TrimPrefix(kind.String(), "Type"), name, server, causeOf(err))
			if ctx.Err() != nil {
				return answer{}, err
			}
		}
	}
	return answer{}, err
}

// causeOf an error without the socket's own port, which is another one each time.
func causeOf(err error) error {
	if operation := (*net.OpError)(nil); errors.As(err, &operation) {
		err = operation.Err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer within %s", questionTimeout)
	}
	return err
}

func askServer(ctx context.Context, server netip.AddrPort, name string, kind dnsmessage.Type) (answer, error) {
	q, err := newQuestion(name, kind)
	if err != nil {
		return answer{}, err
	}
	reply, isTruncated, err := q.exchange(ctx, "udp", server)
	if err == nil && isTruncated {
		reply, _, err = q.exchange(ctx, "tcp", server)
	}
	if err != nil {
		return answer{}, err
	}
	return q.read(reply)
}

type question struct {
	dnsmessage.Question
	id    uint16
	bytes []byte
}

// newQuestion has a number that nobody can guess, as has its socket's port.
func newQuestion(name string, kind dnsmessage.Type) (*question, error) {
	of, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, err
	}
	var id [2]byte
	_, _ = rand.Read(id[:]) // it never fails
	q := &question{Question: dnsmessage.Question{Name: of, Type: kind, Class: dnsmessage.ClassINET}, id: binary.BigEndian.Uint16(id[:])}
	var options dnsmessage.ResourceHeader
	if err := options.SetEDNS0(udpBytesMax, dnsmessage.RCodeSuccess, false); err != nil {
		return nil, err
	}
	message := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions:   []dnsmessage.Question{q.Question},
		Additionals: []dnsmessage.Resource{{Header: options, Body: &dnsmessage.OPTResource{}}},
	}
	q.bytes, err = message.Pack()
	return q, err
}

// exchange the question for its answer. By UDP what answers another question is passed
// over: it may be late, or forged.
func (q *question) exchange(ctx context.Context, network string, server netip.AddrPort) (reply []byte, isTruncated bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, server.String())
	if err != nil {
		return nil, false, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, false, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	reply, err = check.ExchangeDNS(conn, network, q.bytes, func(reply []byte) bool { _, answers := q.answeredBy(reply); return answers })
	if err != nil {
		return nil, false, err
	}
	header, answers := q.answeredBy(reply)
	switch {
	case !answers: // by TCP
		return nil, false, errors.New("the answer is to another question")
	case header.Truncated && network == "tcp":
		return nil, false, errors.New("the answer is longer than a DNS message")
	}
	return reply, header.Truncated, nil
}

// answeredBy a message: it has the question's number, and repeats it.
func (q *question) answeredBy(message []byte) (dnsmessage.Header, bool) {
	var parser dnsmessage.Parser
	header, err := parser.Start(message)
	if err != nil || !header.Response || header.ID != q.id {
		return header, false
	}
	asked, err := parser.AllQuestions()
	return header, err == nil && len(asked) == 1 && asked[0].Type == q.Type && asked[0].Class == q.Class && sameName(asked[0].Name, q.Name)
}

// sameName, in whatever letters (RFC 4343).
func sameName(a, b dnsmessage.Name) bool { return strings.EqualFold(a.String(), b.String()) }

// read the records of the question's name, or of the name that it is an alias of.
func (q *question) read(reply []byte) (answer, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(reply)
	if err != nil {
		return answer{}, err
	}
	switch header.RCode {
	case dnsmessage.RCodeNameError: // no records
		return answer{}, nil
	case dnsmessage.RCodeSuccess:
	default:
		return answer{}, fmt.Errorf("answered by %s", check.CodeName(header.RCode))
	}
	if err := parser.SkipAllQuestions(); err != nil {
		return answer{}, err
	}
	records, err := parser.AllAnswers()
	if err != nil {
		return answer{}, fmt.Errorf("the answer cannot be read: %w", err)
	}
	return q.choose(records, header.RecursionAvailable)
}

func (q *question) choose(records []dnsmessage.Resource, recursive bool) (found answer, err error) {
	ttl := ^uint32(0)
	name := q.Name
	for range aliasesMax {
		next := name
		for _, record := range records {
			if !sameName(record.Header.Name, name) || record.Header.Class != dnsmessage.ClassINET {
				continue
			}
			ttl = min(ttl, record.Header.TTL)
			switch body := record.Body.(type) {
			case *dnsmessage.CNAMEResource:
				next = body.CNAME
			case *dnsmessage.AResource:
				found.addresses = append(found.addresses, netip.AddrFrom4(body.A))
			case *dnsmessage.AAAAResource:
				found.addresses = append(found.addresses, netip.AddrFrom16(body.AAAA))
			case *dnsmessage.SRVResource:
				found.services = append(found.services, *body)
			}
		}
		if sameName(next, name) {
			if isEmpty := len(found.addresses)+len(found.services) == 0; isEmpty && !recursive && !sameName(name, q.Name) {
				return answer{}, fmt.Errorf("it is an alias of %s, which the server does not resolve", name)
			}
			found.ttl = time.Duration(ttl) * time.Second
			return found, nil
		}
		name = next
	}
	return answer{}, fmt.Errorf("more than %d aliases, one after the other", aliasesMax)
}
