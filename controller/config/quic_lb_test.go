package config

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// Keys and server ids are worked out apart by vectors/make.py, and the forwarder is
// held to the same.
func TestQUICKeysAndServerIDsAreTheSameForever(t *testing.T) {
	text, err := os.ReadFile("../../vectors/quic_lb.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Keys []struct {
			Cluster, Key string
			Secret       *string
			Config       uint32
		}
		ServerIDs []struct {
			Backend  string
			ServerID string `json:"server_id"`
		} `json:"server_ids"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors.Keys) == 0 || len(vectors.ServerIDs) == 0 {
		t.Fatalf("%d keys, %d server ids: %v", len(vectors.Keys), len(vectors.ServerIDs), err)
	}
	for _, v := range vectors.Keys {
		var secret []byte
		if v.Secret != nil {
			secret = []byte(*v.Secret + " \n")
		}
		if key := QUICKey(v.Cluster, secret, v.Config); hex.EncodeToString(key[:]) != v.Key {
			t.Errorf("%+v: %x", v, key)
		}
	}
	for _, v := range vectors.ServerIDs {
		if id := QUICServerIDOf(v.Backend).String(); id != v.ServerID {
			t.Errorf("%+v: %s", v, id)
		}
	}
}
