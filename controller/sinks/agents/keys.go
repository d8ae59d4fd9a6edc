package agents

// The keys of a backend's agent. All are derived from the cluster's secret, and none
// reveals it, or another agent's keys.

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/session"
)

const (
	bucketKeyBytes = 16
	// What a secret has at least; the same limit as in the config.
	secretBytesMin = 16
)

// Keys are what one agent knows of the cluster's secret.
type Keys struct {
	// The backend's name.
	Agent string
	// Names the secret without giving it away; plans have the same.
	KeyID string
	// Authenticates messages from and to this agent.
	Message session.Key
	// Of the hash that selects buckets: the same for all agents.
	Bucket [bucketKeyBytes]byte
}

// Secret derives keys.
type Secret struct {
	id     string
	agents [sha256.Size]byte
	pairs  [sha256.Size]byte
	bucket [bucketKeyBytes]byte
}

// NewSecret takes the content of the cluster's secret file. White space at its end
// does not count.
func NewSecret(content []byte) (Secret, error) {
	trimmed := config.TrimSecret(content)
	if len(trimmed) < secretBytesMin {
		return Secret{}, fmt.Errorf("the secret has %d bytes, not counting white space at its end: at least %d are needed", len(trimmed), secretBytesMin)
	}
	digest := sha256.Sum256(append([]byte("guideway bucket hash\x00secret\x00"), trimmed...))
	return Secret{
		id:     config.KeyID(trimmed),
		agents: sha256.Sum256(append([]byte("guideway agents\x00"), trimmed...)),
		pairs:  sha256.Sum256(append([]byte("guideway pairs of agents\x00"), trimmed...)),
		bucket: [bucketKeyBytes]byte(digest[:bucketKeyBytes]),
	}, nil
}

// ID names the secret without giving it away.
func (s Secret) ID() string { return s.id }

// Keys of the agent of that backend.
func (s Secret) Keys(agent string) Keys {
	mac := hmac.New(sha256.New, s.agents[:])
	mac.Write([]byte(agent))
	return Keys{Agent: agent, KeyID: s.id, Message: session.Key(mac.Sum(nil)), Bucket: s.bucket}
}

// PeerKeys by name of another agent: each authenticates the messages between both.
type PeerKeys map[string]session.Key

// PeerKeys of the agent of that backend, which exchanges messages with these others.
func (s Secret) PeerKeys(agent string, peers []string) PeerKeys {
	keys := PeerKeys{}
	for _, peer := range peers {
		keys[peer] = s.pair(agent, peer)
	}
	return keys
}

// pair is the key of two agents: the same for both, so the lesser name comes first.
func (s Secret) pair(one, other string) session.Key {
	return session.KeyOfPair(s.pairs, min(one, other), max(one, other))
}

// File is the text of the agent's key_file.
func (k Keys) File(peers PeerKeys) string {
	var text strings.Builder
	fmt.Fprintf(&text, `# Keys of the agent on the backend %[1]s; for root alone (mode 0600).
# Printed by: guideway config backend %[1]s FILE...
agent: %[2]q
key_id: "%[3]s"
message_key: "%[4]s"
bucket_key: "%[5]s"
`, k.Agent, k.Agent, k.KeyID, hex.EncodeToString(k.Message[:]), hex.EncodeToString(k.Bucket[:]))
	if len(peers) > 0 {
		text.WriteString("# For messages to the agents of other backends (docs/mptcp.md).\npeers:\n")
	}
	for _, peer := range slices.Sorted(maps.Keys(peers)) {
		key := peers[peer]
		fmt.Fprintf(&text, "  %q: %q\n", peer, hex.EncodeToString(key[:]))
	}
	return text.String()
}
