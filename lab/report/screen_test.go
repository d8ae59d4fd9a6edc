package report

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guideway/guideway/lab/traffic/load"
)

// slowLoad takes its time to answer.
type slowLoad struct{ takes time.Duration }

func (l slowLoad) Progress() (load.Report, error) {
	time.Sleep(l.takes)
	return load.Report{}, nil
}

// On a busy machine an answer may be under way when the event is over.
func TestALoadIsUnfollowedWhileItIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		screen := NewScreen(io.Discard)
		screen.Follow(slowLoad{takes: 5 * time.Second})
		time.Sleep(progressEvery + time.Second) // it is being asked
		screen.Unfollow()
		screen.Unfollow()
	})
}
