package compile

import (
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// quicLB of a service; nil: it has none.
func quicLB(s *config.Service) *planv1.QuicLb {
	if s.QUICLB == nil {
		return nil
	}
	compiled := &planv1.QuicLb{}
	for _, c := range s.QUICLB.Configs {
		compiled.Configs = append(compiled.Configs, &planv1.QuicLbConfig{
			Id: c.ID, Encrypted: c.Encrypted, ServerIdBytes: c.ServerIDBytes, NonceBytes: c.NonceBytes,
		})
	}
	for _, member := range s.Members {
		name := member.Backend.Name
		compiled.Servers = append(compiled.Servers, &planv1.QuicServer{Backend: name, ServerId: config.QUICServerIDOf(name).String()})
	}
	return compiled
}
