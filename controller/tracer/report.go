package tracer

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/guideway/guideway/controller/outside"
)

// Report is what one load balancer did with a marked packet.
type Report struct {
	Machine    string `json:"machine"`
	Generation uint64 `json:"generation"`
	// The number of workers stands for the slow path, which has fragments.
	Worker int `json:"worker"`
	// How many more load balancers the packet might have passed when it
	// arrived: 7 a client's own, 3 a redirected fragment, 2 a spilled packet,
	// 1 a spilled fragment that was redirected there, or a copy.
	Budget  uint8  `json:"budget"`
	Service string `json:"service,omitempty"`
	// VIP, protocol and ports.
	Matched string `json:"matched,omitempty"`
	// hit, miss or none (not asked): the connection table.
	Table string `json:"table"`
	// Of the Maglev table; nil: not asked.
	Slot    *uint32 `json:"slot,omitempty"`
	Backend string  `json:"backend,omitempty"`
	// sent, redirected, passed, replied, held, dropped, or slow: more follows
	// from the same machine.
	Verdict string `json:"verdict"`
	// Of a drop.
	Reason string `json:"reason,omitempty"`
}

// final reports whether no later report on the packet can come.
func (r Report) final() bool {
	switch r.Verdict {
	case "slow", "redirected", "held":
		return false
	}
	return true
}

// ParseReport reads one datagram, and which packet it is about. Fields that it
// does not know are left out: load balancers may be newer.
func ParseReport(datagram []byte) (nonce uint64, report Report, err error) {
	var text struct {
		Nonce string `json:"nonce"`
		Report
	}
	if err := json.Unmarshal(datagram, &text); err != nil {
		return 0, Report{}, fmt.Errorf("parse report: %w", err)
	}
	nonce, err = strconv.ParseUint(text.Nonce, 16, 64)
	if err != nil || len(text.Nonce) != 16 {
		return 0, Report{}, fmt.Errorf("parse report: nonce %q is not 16 hex digits", text.Nonce)
	}
	if text.Machine == "" || text.Verdict == "" {
		return 0, Report{}, fmt.Errorf("parse report: it names no machine or no verdict")
	}
	for _, text := range []*string{&text.Machine, &text.Service, &text.Matched, &text.Table, &text.Backend, &text.Verdict, &text.Reason} {
		*text = outside.Text(*text)
	}
	return nonce, text.Report, nil
}
