package session

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/guideway/guideway/controller/config"
)

// ReadSecret of the cluster, which keys come from: without white space at its end, and the
// one that the config was read with.
func ReadSecret(c *config.Config) ([]byte, error) {
	content, _, err := config.ReadFromDisk(c.Cluster.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's secret: %w", err)
	}
	secret := config.TrimSecret(content)
	if config.KeyID(secret) != c.Cluster.KeyID {
		return nil, errors.New("the cluster's secret has changed since the config was read: reload the config")
	}
	return secret, nil
}

// KeyOfPair of names, by a key that comes from the secret. The first name stands behind its
// length, so no other two names have the same.
func KeyOfPair(key [sha256.Size]byte, first, second string) Key {
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte{byte(len(first))})
	mac.Write([]byte(first + second))
	return Key(mac.Sum(nil))
}
