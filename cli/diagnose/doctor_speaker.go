package diagnose

import (
	"context"
	"time"

	"github.com/guideway/guideway/cli/machine"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

// Of a session whose speaker does not answer.
const sessionUnknown = "unknown"

// speaker by its own words: it goes on without a controller.
func (p *diagnosis) speaker(ctx context.Context, m machine.Machine) {
	if m.Remote.Server != "" || p.state != nil && len(p.state.Neighbors) == 0 {
		return // its socket is another machine's; without BGP it has nothing to do
	}
	var state *speakerv1.State
	err := m.AskSpeaker(ctx, func(ctx context.Context, client speakerv1.SpeakerClient) (err error) {
		state, err = client.GetState(ctx, &speakerv1.GetStateRequest{})
		return err
	})
	if err != nil {
		p.add(gradeFail, "speaker", "%v", err)
		return
	}
	if why := state.GetWithheld(); why != "" {
		p.add(gradeFail, "speaker", "answers, version %s, and announces nothing: %s", state.GetVersion(), why)
		p.follows(p.causeOf(why), "announces nothing")
	} else {
		p.add(gradeOK, "speaker", "answers, version %s, announces %d of %d routes", state.GetVersion(), state.GetRoutesAnnounced(), state.GetRoutesDesired())
	}
	if since := state.GetControllerAbsentSince(); since != nil {
		p.add(gradeFail, "speaker", "has had no controller for %s: routes follow the forwarder's health, but not the backends': systemctl start guideway-controller",
			time.Since(since.AsTime()).Round(time.Second))
		p.follows("controller", "")
	}
	if why := state.GetSlow(); why != "" {
		p.add(gradeWarn, "speaker", "announces its routes as worse ones, since the machine is slow: %s: unless a line above says more, find out by `top` what takes its processors", why)
	}
	if why := state.GetProblem(); why != "" {
		p.add(gradeFail, "speaker", "could not announce everything: %s", why)
	}
	if why := state.GetNotKept(); why != "" {
		p.add(gradeWarn, "speaker", "has what it announces not on disk, so a restart without a controller would announce something older (%s): make room or mend the state directory; it is tried again by itself", why)
	}
}
