package config

// Etcd is where the machines of a cluster share their config.
type Etcd struct {
	// The cluster's name, part of every key.
	Cluster string
	// URLs, at least one, all of one scheme.
	Endpoints []string
	// Paths. Without a CA the system's authorities count; certificate and key are
	// both given or both empty.
	CAFile, CertFile, KeyFile string
	// Both given or both empty. They were readable when the config was parsed.
	User, PasswordFile string
}
