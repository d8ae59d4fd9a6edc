package session

import (
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
