package speaker

// The speaker's metrics, served by the speaker itself: they are most useful when the
// controller's are unavailable.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/guideway/guideway/controller/web"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

// established is the state of a session that routes go over.
const established = "established"

// Words of NeighborState.bfd.
const (
	bfdUp   = "up"
	bfdDown = "down"
)

// serveMetrics as one of the tasks, until the function that it gives is called. Pages under
// way end with the work.
func (p *process) serveMetrics(work context.Context, tasks *sync.WaitGroup) (stop func(), err error) {
	if p.options.MetricsListen == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", p.options.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen %s: %w: give an address of this machine and a port that is free, like 127.0.0.1:9474", p.options.MetricsListen, err)
	}
	begin := func(task func(context.Context)) { tasks.Go(func() { task(work) }) }
	server := web.NewServer(web.MetricsHandler(begin, p.metricsPage))
	tasks.Go(func() {
		if err := server.Serve(web.Limit(listener)); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("HTTP server ended", "address", p.options.MetricsListen, "error", err)
		}
	})
	return func() { _ = server.Close() }, nil
}

// metricsPage in Prometheus' text format.
func (p *process) metricsPage(context.Context) ([]byte, error) {
	families, err := metricsOf(p.state(), time.Now()).Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var page bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			return nil, fmt.Errorf("write metrics: %w", err)
		}
	}
	return page.Bytes(), nil
}

// metricsOf one state.
func metricsOf(state *speakerv1.State, now time.Time) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	gauge := func(o prometheus.GaugeOpts, value float64) {
		g := prometheus.NewGauge(o)
		g.Set(value)
		registry.MustRegister(g)
	}
	absent := 0.0
	if since := state.GetControllerAbsentSince(); since != nil {
		absent = now.Sub(since.AsTime()).Seconds()
	}
	gauge(prometheus.GaugeOpts{
		Name: "guideway_speaker_controller_absent_seconds", Help: "How long no controller has called the speaker: nothing follows the backends' health meanwhile. 0: one is there.",
	}, absent)
	gauge(prometheus.GaugeOpts{
		Name: "guideway_speaker_withheld", Help: "1 while nothing is announced: the forwarder is not well, or no controller ever said what to announce (`guideway show bgp` says which).",
	}, truth(state.GetWithheld() != ""))
	gauge(prometheus.GaugeOpts{
		Name: "guideway_speaker_slow", Help: "1 while routes are announced as worse ones (own AS prepended, higher MED), because the machine is short of processor time or its forwarder follows no next hops, or was or did so within the last 30 s.",
	}, truth(state.GetSlow() != ""))
	gauge(prometheus.GaugeOpts{Name: "guideway_speaker_routes_desired", Help: "Routes that the controller desired last."}, float64(state.GetRoutesDesired()))
	gauge(prometheus.GaugeOpts{Name: "guideway_speaker_routes_announced", Help: "Routes that the speaker announces to its neighbors."}, float64(state.GetRoutesAnnounced()))
	gauge(prometheus.GaugeOpts{
		Name: "guideway_speaker_unkept", Help: "1 while what is desired is not on disk, so that a restart without a controller would announce something older.",
	}, truth(state.GetNotKept() != ""))
	sessions := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "guideway_speaker_session_up", Help: "1 for a BGP session that is established, by the speaker's own page.",
	}, []string{"neighbor"})
	for _, n := range state.GetNeighbors() {
		sessions.WithLabelValues(n.GetAddress()).Set(truth(n.GetState() == established))
	}
	registry.MustRegister(sessions)
	bfd := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "guideway_speaker_bfd_up", Help: "1 for a BGP neighbor with which BFD is up, which begins a second after the session and ends with it. Absent for those whose config has no bfd.",
	}, []string{"neighbor"})
	for _, n := range state.GetNeighbors() {
		if n.GetBfd() != "" {
			bfd.WithLabelValues(n.GetAddress()).Set(truth(n.GetBfd() == bfdUp))
		}
	}
	registry.MustRegister(bfd)
	ownershipMetrics(registry, state)
	return registry
}

// ownershipMetrics where VRRP is configured.
func ownershipMetrics(registry *prometheus.Registry, state *speakerv1.State) {
	active := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "guideway_speaker_vrrp_active", Help: "1 for a VRRP virtual router (a group of VIPs in one family) whose VIPs this machine owns. Absent without vrrp in the config.",
	}, []string{"vrid", "family"})
	running := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "guideway_speaker_vrrp_running", Help: "1 for a VRRP virtual router that owns its VIPs or waits to own them; 0: `guideway show vrrp` has the reason. Absent without vrrp in the config.",
	}, []string{"vrid", "family"})
	registry.MustRegister(active, running)
	for _, r := range state.GetVrrp() {
		vrid, family := strconv.FormatUint(uint64(r.GetVrid()), 10), r.GetFamily()
		active.WithLabelValues(vrid, family).Set(truth(r.GetState() == election.Active.String()))
		running.WithLabelValues(vrid, family).Set(truth(r.GetState() != election.Initialize.String()))
	}
	counter := func(name, help string, value uint64) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		c.Add(float64(value))
		registry.MustRegister(c)
	}
	counts := state.GetVrrpCounts()
	counter("guideway_speaker_vrrp_second_owners_total", "Claims of other machines to VIPs that this one owned: by an advertisement of lower priority, or by ARP or neighbor discovery. Two owners draw each other's packets; both forward them.", counts.GetSecondOwners())
	counter("guideway_speaker_vrrp_advertisements_total", "VRRP advertisements that this machine sent.", counts.GetAdvertisementsSent())
	counter("guideway_speaker_vrrp_answers_total", "Answers to ARP and neighbor solicitations for VIPs that this machine owns.", counts.GetAnswers())
	counter("guideway_speaker_vrrp_answers_limited_total", "Questions about VIPs of this machine that were not answered, because answers have a limit by sender and in all.", counts.GetNotAnswered())
	counter("guideway_speaker_vrrp_malformed_total", "Packets of VRRP, ARP or neighbor discovery that were dropped, as they are not what the standards have.", counts.GetMalformed())
	counter("guideway_speaker_vrrp_sends_failed_total", "Advertisements, announcements and answers that the kernel did not take.", counts.GetSendsFailed())
}

func truth(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
