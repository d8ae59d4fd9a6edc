package config

import (
	"crypto/sha256"
	"net/netip"
)

// AgentAddress is a backend's address, as the agents that accept its packets say it: the
// first bytes of its digest.
type AgentAddress [4]byte

// AgentAddressOf a backend.
func AgentAddressOf(address netip.Addr) AgentAddress {
	bytes := address.As16()
	sum := sha256.Sum256(bytes[:])
	return AgentAddress(sum[:])
}
