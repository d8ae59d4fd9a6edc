package topology

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Subflow of a connection of Multipath TCP, as the kernel that has it sees it.
type Subflow struct {
	Local, Remote netip.AddrPort
	// Token of the connection here: the same for all of its subflows.
	Token string
	// Bytes that the other end has acknowledged, and that came from it.
	Bytes uint64
}

// Subflows in a namespace that are established.
func Subflows(ctx context.Context, namespace string) ([]Subflow, error) {
	text, err := Output(ctx, "", "ip", "netns", "exec", namespace, "ss", "-tinOH", "state", "established")
	if err != nil {
		return nil, fmt.Errorf("list subflows in %s: %w", namespace, err)
	}
	return parseSubflows(text)
}

var (
	subflowToken = regexp.MustCompile(`tcp-ulp-mptcp .*token:[0-9a-f]+\(id:\d+\)/([0-9a-f]+)\(id:\d+\)`)
	subflowBytes = regexp.MustCompile(`bytes_(?:acked|received):(\d+)`)
)

// parseSubflows of `ss -tinOH state established`: queues, both ends, and what the kernel
// knows. Other connections are left out.
func parseSubflows(text string) ([]Subflow, error) {
	var subflows []Subflow
	for line := range strings.Lines(text) {
		token := subflowToken.FindStringSubmatch(line)
		if token == nil {
			continue
		}
		fields := strings.Fields(line)
		local, err := parseEnd(fields[2])
		if err != nil {
			return nil, err
		}
		remote, err := parseEnd(fields[3])
		if err != nil {
			return nil, err
		}
		found := Subflow{Local: local, Remote: remote, Token: token[1]}
		for _, count := range subflowBytes.FindAllStringSubmatch(line, -1) {
			bytes, err := strconv.ParseUint(count[1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("ss: %w", err)
			}
			found.Bytes += bytes
		}
		subflows = append(subflows, found)
	}
	return subflows, nil
}

// parseEnd `10.0.0.1%eth1:80`, or `[2001:db8::1]:80`.
func parseEnd(text string) (netip.AddrPort, error) {
	if address, port, bound := strings.Cut(text, "%"); bound {
		_, port, _ = strings.Cut(port, ":")
		text = address + ":" + port
	}
	end, err := netip.ParseAddrPort(text)
	if err != nil {
		return end, fmt.Errorf("ss: %w", err)
	}
	return netip.AddrPortFrom(end.Addr().Unmap(), end.Port()), nil
}
