package config

import (
	"strings"
	"testing"
	"time"
)

func TestHowLongRoutesStayWithoutAController(t *testing.T) {
	read := func(speaker string) (*Config, error) {
		text := small + speaker + "\n"
		return Parse([]Source{{Name: "t.yaml", Data: []byte(text)}}, noFiles)
	}
	for text, want := range map[string]time.Duration{"": 0, "speaker: {controller_absent_max: never}": 0, "speaker: {controller_absent_max: 10m}": 10 * time.Minute} {
		if parsed, err := read(text); err != nil || parsed.Speaker.ControllerAbsentMax != want {
			t.Errorf("%q: %v, %v", text, parsed, err)
		}
	}
	for _, text := range []string{"sometimes", "1s", "-10m", "\"0\""} {
		if _, err := read("speaker: {controller_absent_max: " + text + "}"); err == nil || !strings.Contains(err.Error(), "speaker.controller_absent_max") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
