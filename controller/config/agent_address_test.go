package config

import (
	"encoding/hex"
	"net/netip"
	"testing"
)

// As the agent's code has it (agent/src/messages).
func TestAnAgentsAddressIsTheBeginningOfItsDigest(t *testing.T) {
	for _, text := range []string{"10.1.0.12", "::ffff:10.1.0.12"} {
		if got := AgentAddressOf(netip.MustParseAddr(text)); hex.EncodeToString(got[:]) != "320706d5" {
			t.Errorf("%s: %x", text, got)
		}
	}
}
