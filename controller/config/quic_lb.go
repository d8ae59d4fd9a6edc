package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// QUICLB is how QUIC connection ids name a service's backends
// (draft-ietf-quic-load-balancers).
type QUICLB struct {
	// One to seven, each id once. Servers make new connection ids by the first.
	Configs []QUICLBConfig
}

// QUICLBConfig is the layout of connection ids: a byte whose highest three bits are
// ID, the server id, the nonce.
type QUICLBConfig struct {
	// 0 to 6.
	ID        uint32
	Encrypted bool
	// 4 to 8. The Members of the service differ in these.
	ServerIDBytes uint32
	// 4 and more; with ServerIDBytes 19 at most.
	NonceBytes uint32
}

const (
	quicServerIDBytesDefault = 8
	quicNonceBytesDefault    = 8
	// A connection id of QUIC version 1 has 20, and the first is the config's.
	quicBytesMax = 19
)

// QUICServerID is what a backend's connection ids hold.
type QUICServerID [8]byte

func (id QUICServerID) String() string { return hex.EncodeToString(id[:]) }

// QUICServerIDOf a backend: of its name alone, so that it is the same on all machines
// and in all services, and outlives every change of the config.
func QUICServerIDOf(backend string) (id QUICServerID) {
	digest := sha256.Sum256([]byte("guideway quic server id\x00" + backend))
	copy(id[:], digest[:])
	return id
}

// QUICKey encrypts connection ids of the config of that id. secret is the content of
// the cluster's secret file; nil: it has none, and everybody who knows the cluster's
// name has the key.
func QUICKey(cluster string, secret []byte, config uint32) [16]byte {
	purpose := append([]byte("guideway quic connection id\x00"), byte(config), 0)
	of := append([]byte("derived\x00"), cluster...)
	if secret != nil {
		of = append([]byte("secret\x00"), TrimSecret(secret)...)
	}
	digest := sha256.Sum256(append(purpose, of...))
	return [16]byte(digest[:16])
}

// QUICSettings are what a backend's QUIC server makes the connection ids of one config
// of a service by.
type QUICSettings struct {
	Service string
	QUICLBConfig
	// As many bytes as QUICLBConfig says, in hexadecimal digits.
	ServerID string
	// Of an encrypted config.
	Key [16]byte
}

// ConnectionIDBytes is how long connection ids are.
func (s QUICSettings) ConnectionIDBytes() uint32 { return 1 + s.ServerIDBytes + s.NonceBytes }

// QUICSettingsOf a backend: for each of its services that has connection ids, all
// configs, that of new ones first. secret is as QUICKey has it.
func QUICSettingsOf(c *Config, backend string, secret []byte) (settings []QUICSettings) {
	for _, service := range c.Services {
		if service.QUICLB == nil || !slices.ContainsFunc(service.Members, func(m Member) bool { return m.Backend.Name == backend }) {
			continue
		}
		for _, config := range service.QUICLB.Configs {
			one := QUICSettings{
				Service: service.Name, QUICLBConfig: config,
				ServerID: QUICServerIDOf(backend).String()[:2*config.ServerIDBytes],
			}
			if config.Encrypted {
				one.Key = QUICKey(c.Cluster.Name, secret, config.ID)
			}
			settings = append(settings, one)
		}
	}
	return settings
}

// quicLB is nil where it is not given.
func (b *builder) quicLB(path string, given *configv1.QuicLb) *QUICLB {
	if given == nil {
		return nil
	}
	configs := given.GetConfigs()
	if len(configs) == 0 {
		configs = []*configv1.QuicLbConfig{{}}
	}
	built := &QUICLB{}
	for i, config := range configs {
		path := fmt.Sprintf("%s.configs[%d]", path, i)
		one := QUICLBConfig{
			ID:            config.GetId(),
			Encrypted:     config.Encrypted == nil || config.GetEncrypted(),
			ServerIDBytes: or(config.GetServerIdBytes(), quicServerIDBytesDefault),
			NonceBytes:    or(config.GetNonceBytes(), quicNonceBytesDefault),
		}
		if bytes := one.ServerIDBytes + one.NonceBytes; bytes > quicBytesMax {
			b.errorf(path+".nonce_bytes", "is %d, together with server_id_bytes %d: a connection id has room for %d; give at most %d", one.NonceBytes, bytes, quicBytesMax, quicBytesMax-one.ServerIDBytes)
		}
		if slices.ContainsFunc(built.Configs, func(other QUICLBConfig) bool { return other.ID == one.ID }) {
			b.errorf(path+".id", "%d is there twice: give each config another, of 0 to 6", one.ID)
		}
		built.Configs = append(built.Configs, one)
	}
	return built
}

// checkQUICLB looks at what connection ids need beside their own fields.
func (b *builder) checkQUICLB() {
	for i, service := range b.config.Services {
		if service.QUICLB == nil {
			continue
		}
		path := fmt.Sprintf("services[%d].quic_lb", i)
		if service.Mode != ModeStateless {
			b.errorf(path, "is for stateless services: set `mode: stateless`, or remove it")
		}
		if !slices.ContainsFunc(service.VIPs, func(vip VIP) bool { return vip.Protocol != ProtocolTCP }) {
			b.errorf(path, "is given, and QUIC is UDP, for which the service has no VIP: add one with `protocol: udp`, or remove it")
		}
		for _, config := range service.QUICLB.Configs {
			b.checkQUICServerIDs(path, service.Members, config)
			if config.Encrypted && b.config.Cluster.KeyID == KeyDerived {
				b.warnf(path, "the key of connection ids is derived from the cluster's name, so that many can decrypt them: give `cluster.secret_file`")
				break
			}
		}
	}
}

// checkQUICServerIDs refuses two backends that connection ids do not distinguish.
func (b *builder) checkQUICServerIDs(path string, members []Member, config QUICLBConfig) {
	seen := map[string]string{}
	for _, member := range members {
		name := member.Backend.Name
		id := QUICServerIDOf(name).String()[:2*config.ServerIDBytes]
		if other, ok := seen[id]; ok {
			b.errorf(path, "connection ids of config %d do not distinguish %s and %s: the first %d bytes of both server ids are %s; give a longer server_id_bytes, or one of them another name", config.ID, other, name, config.ServerIDBytes, id)
		}
		seen[id] = name
	}
}
