package brain

// The speaker: a separate process with the BGP sessions.

import "net/netip"

type speakerState struct {
	// It answered once, so that it is known what it has from the controller
	// before this one.
	met bool
	// Empty: it answers.
	reason string
}

func (e SpeakerConnected) apply(s *State) {
	if !s.routes.speaker.met {
		s.routes.inherited = make(map[netip.Prefix]bool, len(e.Prefixes))
		for _, prefix := range e.Prefixes {
			s.routes.inherited[prefix] = true
			if r := s.routes.byPrefix[prefix]; r != nil {
				r.nextHopsResolved, r.inherited = true, true
			}
		}
	}
	if s.routes.speaker.reason != "" {
		s.note("speaker", "speaker", "lost", "connected", "it answers")
	}
	s.routes.speaker = speakerState{met: true}
}

func (e SpeakerLost) apply(s *State) {
	if s.routes.speaker.reason == "" {
		s.note("speaker", "speaker", "connected", "lost", e.Reason)
	}
	s.routes.speaker.reason = e.Reason
	clear(s.routes.neighbors)
}
