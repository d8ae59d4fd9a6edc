package agents

// The services as described to agents, and the counts that agents send for them.

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/session"
	agentv1 "github.com/guideway/guideway/proto/guideway/agent/v1"
	"google.golang.org/protobuf/proto"
)

// Of the fields of an AnswerPart beside the piece: 6 bytes of each interval, 9 of the
// digest, 3 of the piece's length.
const answerBytes = 24

// servicesOf one backend.
type servicesOf struct {
	message *agentv1.Services
	// 0 where they do not fit into an answer.
	digest uint64
	pieces [][]byte
}

// servicesByBackend of a config: also of backends without any, whose agents are known
// all the same. tooMany names those whose services do not fit into an answer.
func servicesByBackend(c *config.Config) (all map[string]*servicesOf, tooMany []string) {
	all = make(map[string]*servicesOf, len(c.Backends))
	messages := map[string]*agentv1.Services{}
	groups := map[string]map[string]bool{}
	services := c.ServicesHere()
	for i := range services {
		addService(&services[i], messages, groups)
	}
	for i := range c.Backends {
		name := c.Backends[i].Name
		message := messages[name]
		if message == nil {
			message = &agentv1.Services{}
		}
		for _, group := range compile.PrefixGroups(c.PrefixGroups) {
			if groups[name][group.GetName()] {
				message.PrefixGroups = append(message.PrefixGroups, group)
			}
		}
		all[name] = newServicesOf(name, message)
		if all[name].digest == 0 {
			tooMany = append(tooMany, name)
		}
	}
	return all, tooMany
}

// addService to those of its members; groups are the prefix groups that each needs.
func addService(s *config.Service, messages map[string]*agentv1.Services, groups map[string]map[string]bool) {
	message := &agentv1.Service{Name: s.Name, Affinity: compile.Affinity(s.Affinity), Buckets: s.Buckets}
	for _, vip := range s.VIPs {
		message.Vips = append(message.Vips, compile.VIP(vip))
	}
	for _, member := range s.Members {
		name := member.Backend.Name
		if messages[name] == nil {
			messages[name], groups[name] = &agentv1.Services{}, map[string]bool{}
		}
		messages[name].Services = append(messages[name].Services, message)
		for _, vip := range s.VIPs {
			groups[name][vip.PrefixGroup] = true
		}
	}
}

func newServicesOf(agent string, message *agentv1.Services) *servicesOf {
	s := &servicesOf{message: message}
	bytes, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message) // compiled: it can be
	size := session.BodyBytesMax(agent) - answerBytes
	if len(bytes) > session.PartsMax*size {
		s.message, s.pieces = &agentv1.Services{}, [][]byte{nil}
		return s
	}
	digest := sha256.Sum256(bytes)
	s.digest = max(1, binary.BigEndian.Uint64(digest[:]))
	for first := true; first || len(bytes) > 0; first = false {
		n := min(len(bytes), size)
		s.pieces = append(s.pieces, bytes[:n])
		bytes = bytes[n:]
	}
	return s
}

// partsOf a state; false: they are malformed.
func partsOf(bodies [][]byte) (parts []*agentv1.StatePart, ok bool) {
	for _, body := range bodies {
		part := &agentv1.StatePart{}
		parts = append(parts, part)
		if proto.Unmarshal(body, part) != nil || part.GetServices() != parts[0].GetServices() || (len(part.GetAccepts())|len(part.GetStanding().GetOwn()))%len(config.AgentAddress{}) != 0 {
			return nil, false
		}
	}
	return parts, true
}

// count what lives there, if that was counted by these services; false: it is malformed.
func (s *servicesOf) count(parts []*agentv1.StatePart, state *State) bool {
	standing := parts[0].GetStanding()
	if digest := parts[0].GetServices(); digest != s.digest || digest == 0 || standing != nil && standing.CountedMsAgo == nil {
		return true
	}
	state.Counted = state.Received.Add(-time.Duration(standing.GetCountedMsAgo()) * time.Millisecond)
	state.Counts = map[string]map[uint32]uint32{}
	return s.addAll(state.Counts, parts)
}

// addAll counts of these services; false: they are malformed.
func (s *servicesOf) addAll(counts map[string]map[uint32]uint32, parts []*agentv1.StatePart) bool {
	for _, service := range s.message.GetServices() {
		if service.GetBuckets() > 0 {
			counts[service.GetName()] = map[uint32]uint32{}
		}
	}
	uncounted := map[uint32]bool{}
	for _, part := range parts {
		for _, service := range part.GetCounts() {
			if !s.add(counts, service) {
				return false
			}
			uncounted[service.GetService()] = uncounted[service.GetService()] || service.GetUncounted()
		}
	}
	for i := range uncounted {
		if uncounted[i] {
			delete(counts, s.message.GetServices()[i].GetName())
		}
	}
	return true
}

// add the counts of a service; false: they are malformed.
func (s *servicesOf) add(counts map[string]map[uint32]uint32, given *agentv1.ServiceSockets) bool {
	services := s.message.GetServices()
	if int(given.GetService()) >= len(services) || len(given.GetBuckets()) != len(given.GetSockets()) {
		return false
	}
	service := services[given.GetService()]
	live := counts[service.GetName()]
	bucket := uint64(0)
	for i, step := range given.GetBuckets() {
		bucket += uint64(step)
		if bucket >= uint64(service.GetBuckets()) || i > 0 && step == 0 || given.GetSockets()[i] == 0 {
			return false
		}
		sum := uint64(live[uint32(bucket)]) + uint64(given.GetSockets()[i])
		live[uint32(bucket)] = uint32(min(sum, math.MaxUint32))
	}
	return true
}
