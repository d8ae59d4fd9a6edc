package agents

import (
	"strings"
	"testing"
)

func TestAKeyFileHasTheKeysOfPeersByName(t *testing.T) {
	secret := mustSecret(t)
	keys := secret.Keys("web-1")
	if file := keys.File(secret.PeerKeys("web-1", nil)); strings.Contains(file, "peers") {
		t.Errorf("peers without any:\n%s", file)
	}
	file := keys.File(secret.PeerKeys("web-1", []string{"web-3", "web-2"}))
	_, peers, _ := strings.Cut(file, "peers:\n")
	lines := strings.Split(strings.TrimSpace(peers), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], `"web-2": "`) || !strings.HasPrefix(lines[1], `  "web-3": "`) {
		t.Errorf("peers in no order:\n%s", file)
	}
	// Which bytes are whose name's is part of the key.
	if secret.pair("a", "bc") == secret.pair("ab", "c") {
		t.Error("two pairs of agents have one key")
	}
}
