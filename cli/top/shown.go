package top

import (
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// shownRates are those of one machine, or the sums of a fleet; all per second.
type shownRates struct {
	Machine string `json:"machine,omitempty"`
	// Of the later reading of the counters, and how long after the former one; not of a fleet.
	Time           string       `json:"time,omitempty"`
	Seconds        float64      `json:"seconds,omitempty"`
	Received       float64      `json:"received"`
	Sent           float64      `json:"sent"`
	Passed         float64      `json:"passed"`
	Replied        float64      `json:"replied"`
	Redirected     float64      `json:"redirected"`
	Bytes          float64      `json:"bytes"`
	NewConnections float64      `json:"new_connections"`
	Dropped        []shownDrop  `json:"dropped"`
	Services       []shownRate  `json:"services"`
	ServicesBusy   uint32       `json:"services_busy"`
	Backends       []shownRate  `json:"backends"`
	BackendsBusy   uint32       `json:"backends_busy"`
	Workers        []shownLoad  `json:"workers"`
	Machines       []shownOfOne `json:"machines,omitempty"`
}

type shownRate struct {
	Service        string  `json:"service,omitempty"`
	Backend        string  `json:"backend,omitempty"`
	Packets        float64 `json:"packets"`
	Bytes          float64 `json:"bytes"`
	NewConnections float64 `json:"new_connections"`
}

type shownDrop struct {
	Reason     string  `json:"reason"`
	Packets    float64 `json:"packets"`
	Meaning    string  `json:"meaning"`
	UsualCause string  `json:"usual_cause"`
}

type shownLoad struct {
	Name      string  `json:"name"`
	BusyRatio float64 `json:"busy_ratio"`
}

// shownOfOne machine of a fleet.
type shownOfOne struct {
	Machine string `json:"machine"`
	// Why it is not in the sums; then there is nothing else.
	Problem        string  `json:"problem,omitempty"`
	Time           string  `json:"time,omitempty"`
	Seconds        float64 `json:"seconds,omitempty"`
	Received       float64 `json:"received"`
	Sent           float64 `json:"sent"`
	Dropped        float64 `json:"dropped"`
	Bytes          float64 `json:"bytes"`
	NewConnections float64 `json:"new_connections"`
}

func (m *model) value() shownRates {
	sum, _ := m.now.sum()
	sum = m.chosen(sum)
	value := shownRates{
		Received: sum.Received, Sent: sum.Sent, Passed: sum.Passed, Replied: sum.Replied, Redirected: sum.Redirected,
		Bytes: sum.Bytes, NewConnections: sum.NewConnections,
		Dropped: []shownDrop{}, Services: shownOf(sum.Services), ServicesBusy: sum.ServicesBusy, Backends: shownOf(sum.Backends), BackendsBusy: sum.BackendsBusy,
		Workers: []shownLoad{},
	}
	for _, d := range sum.Dropped {
		value.Dropped = append(value.Dropped, shownDrop{d.Reason, d.Packets, d.Meaning, d.UsualCause})
	}
	for _, w := range sum.Workers {
		value.Workers = append(value.Workers, shownLoad{w.Name, w.BusyRatio})
	}
	if !m.isFleet {
		value.Machine, value.Time, value.Seconds = sum.Machine, output.At(sum.Time), sum.Seconds
		return value
	}
	for _, w := range m.now.inOrder() {
		one := shownOfOne{Machine: w.name}
		if r := w.rates; w.isCurrent(m.now.at) {
			one.Time, one.Seconds = output.At(r.Time), r.Seconds
			one.Received, one.Sent, one.Dropped, one.Bytes, one.NewConnections = r.Received, r.Sent, rates.Dropped(r), r.Bytes, r.NewConnections
		} else {
			one.Problem = w.wrong(m.now.at)
		}
		value.Machines = append(value.Machines, one)
	}
	return value
}

func shownOf(rates []*controllerv1.Rate) []shownRate {
	shown := []shownRate{}
	for _, r := range rates {
		shown = append(shown, shownRate{r.Service, r.Backend, r.Packets, r.Bytes, r.NewConnections})
	}
	return shown
}
