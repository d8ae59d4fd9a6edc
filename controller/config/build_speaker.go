package config

import "time"

// A controller that is restarted is away for some seconds.
const absentMin = 10 * time.Second

func (b *builder) speaker() {
	const field, never = "speaker.controller_absent_max", "never"
	given := b.schema.GetSpeaker()
	if given == nil || given.ControllerAbsentMax == nil || given.GetControllerAbsentMax() == never {
		return
	}
	limit, err := time.ParseDuration(given.GetControllerAbsentMax())
	if err != nil || limit < absentMin {
		b.errorf(field, "is %q: give `never`, or a time from %s on, such as 10m", given.GetControllerAbsentMax(), short(absentMin))
		return
	}
	b.config.Speaker.ControllerAbsentMax = limit
}
