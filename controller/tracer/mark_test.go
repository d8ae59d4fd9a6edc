package tracer

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

type vector struct {
	Secret          string     `json:"secret"`
	Protocol        Protocol   `json:"protocol"`
	Source          netip.Addr `json:"source"`
	SourcePort      uint16     `json:"source_port"`
	Destination     netip.Addr `json:"destination"`
	DestinationPort uint16     `json:"destination_port"`
	Receiver        netip.Addr `json:"receiver"`
	Port            uint16     `json:"port"`
	Nonce           string     `json:"nonce"`
	UnixMS          int64      `json:"unix_ms"`
	Mark            string     `json:"mark"`
}

func TestMarksAreTheSameInEveryLanguage(t *testing.T) {
	text, err := os.ReadFile("../../vectors/trace.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		key, err := NewKey([]byte(v.Secret))
		if err != nil {
			t.Fatal(err)
		}
		nonce, err := strconv.ParseUint(v.Nonce, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		flow := Flow{v.Protocol, netip.AddrPortFrom(v.Source, v.SourcePort), netip.AddrPortFrom(v.Destination, v.DestinationPort)}
		mark := key.Sign(Mark{netip.AddrPortFrom(v.Receiver, v.Port), nonce, time.UnixMilli(v.UnixMS)}, flow)
		if got := hex.EncodeToString(mark[:]); got != v.Mark {
			t.Errorf("%s to %s:\n got %s\nwant %s", flow, v.Receiver, got, v.Mark)
		}
	}
}

func TestAShortSecretIsRefusedWithItsCure(t *testing.T) {
	for _, secret := range []string{"", "0123456789abcde", "0123456789abcde \n"} {
		if _, err := NewKey([]byte(secret)); err == nil || !strings.Contains(err.Error(), "at least 16") {
			t.Errorf("%q: error %v", secret, err)
		}
	}
}
