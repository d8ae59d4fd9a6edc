package report

import (
	"fmt"
	"html"
	"os"
	"strings"
)

// The result as a picture (SVG): a row for each event, and below them shares and
// figures. Equal reports give equal bytes; colours follow the reader's theme,
// and each has enough contrast on its own background.

const (
	pictureWidth = 960
	margin       = 24
	rowHeight    = 30
	// Where columns end (numbers) or begin (bars).
	requestsEnd    = 330
	failedEnd      = 446
	connectionsEnd = 532
	brokenEnd      = 648
	pauseBegin     = 674
	packetsBegin   = 776
	barHeight      = 10
	pauseWidth     = 80
	packetsWidth   = pictureWidth - margin - packetsBegin
	sharesLabel    = 60
	sharesWidth    = 330
	figuresBegin   = 520
	// machineColours of the picture's style; more machines use them again.
	machineColours = 4
)

const pictureStyle = `
  .page { fill: #ffffff; stroke: #d1d9e0; }
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; font-variant-numeric: tabular-nums; }
  .title { font-size: 18px; font-weight: 600; }
  .head, .soft { fill: #59636e; font-size: 12px; }
  .figure { font-size: 20px; font-weight: 600; }
  .end { text-anchor: end; }
  .line { stroke: #d1d9e0; }
  .good { stroke: #1a7f37; fill: none; stroke-width: 2.5; }
  .bad { stroke: #cf222e; fill: none; stroke-width: 2.5; }
  .pause { fill: #9a6700; }
  .share { fill: #0969da; }
  .band { fill: #59636e; opacity: .25; }
  .ideal { stroke: #1f2328; stroke-width: 1.5; }
  .m0 { fill: #0969da; } .m1 { fill: #8250df; } .m2 { fill: #bf3989; } .m3 { fill: #1b7c83; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; }
    text { fill: #e6edf3; }
    .head, .soft { fill: #9198a1; }
    .line { stroke: #3d444d; }
    .good { stroke: #3fb950; }
    .bad { stroke: #f85149; }
    .pause { fill: #d29922; }
    .share { fill: #4493f8; }
    .band { fill: #9198a1; }
    .ideal { stroke: #e6edf3; }
    .m0 { fill: #4493f8; } .m1 { fill: #ab7df8; } .m2 { fill: #db61a2; } .m3 { fill: #39c5cf; }
  }
`

// WritePicture of the result to a file.
func (r *Report) WritePicture(path string) error {
	if err := os.WriteFile(path, []byte(r.picture()), 0o644); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// drawing is an SVG in the making.
type drawing struct{ strings.Builder }

func (d *drawing) text(x, y int, class, format string, args ...any) {
	fmt.Fprintf(d, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(fmt.Sprintf(format, args...)))
}

func (d *drawing) box(x float64, y int, width float64, height int, class string) {
	fmt.Fprintf(d, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" class=\"%s\"/>\n", x, y, width, height, class)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(d, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

// mark that something is as expected, or not.
func (d *drawing) mark(x, y int, good bool) {
	if good {
		fmt.Fprintf(d, "<path d=\"M%d %dl4 4l8 -9\" class=\"good\"/>\n", x, y-4)
		return
	}
	fmt.Fprintf(d, "<path d=\"M%d %dl9 9m0 -9l-9 9\" class=\"bad\"/>\n", x, y-9)
}

func (r *Report) picture() string {
	var d drawing
	top := 100
	below := top + len(r.Events)*rowHeight + 40
	height := below + max(len(r.Shares)*24, 120) + 30
	fmt.Fprintf(&d, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n",
		pictureWidth, height, pictureWidth, height)
	fmt.Fprintf(&d, "<title>%s</title>\n<style>%s</style>\n", html.EscapeString(r.summary()), pictureStyle)
	fmt.Fprintf(&d, "<rect x=\".5\" y=\".5\" width=\"%d\" height=\"%d\" rx=\"8\" class=\"page\"/>\n", pictureWidth-1, height-1)
	d.text(margin, 36, "title", "make demo: what clients saw")
	d.text(pictureWidth-margin, 36, "soft end", "%s", r.summary())
	r.drawEvents(&d, top)
	d.text(margin+22, below-40, "soft", "%s", r.whatMayBreak())
	r.drawShares(&d, below)
	r.drawFigures(&d, below)
	d.WriteString("</svg>\n")
	return d.String()
}

func (r *Report) whatMayBreak() string {
	text := "In brackets: how many are allowed to: what the server that dies served"
	if r.Agents {
		return text + ". What only the load balancer that dies knew has a second chance."
	}
	return text + ", or what only the load balancer that dies knew."
}

func (r *Report) summary() string {
	requests := 0
	for _, e := range r.Events {
		requests += e.Requests
	}
	verdict := "everything as expected"
	if !r.Good() {
		verdict = "NOT as expected"
	}
	return fmt.Sprintf("%d events under load, %s requests: %s", len(r.Events), thousands(requests), verdict)
}

func (r *Report) drawEvents(d *drawing, top int) {
	head := top - 30
	d.text(margin+22, head, "head", "event")
	d.text(requestsEnd, head, "head end", "requests")
	d.text(failedEnd, head, "head end", "failed (allowed)")
	d.text(connectionsEnd, head, "head end", "connections")
	d.text(brokenEnd, head, "head end", "broken (allowed)")
	d.text(pauseBegin, head, "head", "longest pause")
	d.text(packetsBegin, head, "head", "packets")
	for i, machine := range r.Machines {
		x := packetsBegin + 52 + i*50
		if x+40 > pictureWidth-margin {
			break
		}
		d.box(float64(x), head-9, 10, 10, machineClass(i))
		d.text(x+13, head, "head", "%s", machine)
	}
	d.line(margin, float64(top-20), pictureWidth-margin, float64(top-20), "line")
	pauseMax := int64(1)
	for _, e := range r.Events {
		pauseMax = max(pauseMax, e.LongestPauseMS)
	}
	for i, e := range r.Events {
		y := top + i*rowHeight
		d.mark(margin, y, len(e.Problems) == 0)
		d.text(margin+22, y, "", "%s", strings.ReplaceAll(e.Name, "_", " "))
		d.text(requestsEnd, y, "end", "%s", thousands(e.Requests))
		d.text(failedEnd, y, "end", "%s", withAllowed(e.Failed, e.FailedAllowed))
		d.text(connectionsEnd, y, "end", "%s", thousands(e.Connections))
		d.text(brokenEnd, y, "end", "%s", withAllowed(e.Broken, e.BrokenAllowed))
		pause := pauseWidth * float64(e.LongestPauseMS) / float64(pauseMax)
		d.box(pauseBegin, y-barHeight+8, max(pause, 1), 3, "pause")
		d.text(pauseBegin, y-4, "soft", "%d ms", e.LongestPauseMS)
		r.drawPackets(d, y, e.Packets)
	}
}

// drawPackets of an event, as the load balancers' shares.
func (r *Report) drawPackets(d *drawing, y int, packets map[string]uint64) {
	var all uint64
	for _, n := range packets {
		all += n
	}
	at := float64(packetsBegin)
	for i, machine := range r.Machines {
		width := packetsWidth * float64(packets[machine]) / float64(max(all, 1))
		d.box(at, y-barHeight, width, barHeight, machineClass(i))
		at += width
	}
}

func withAllowed(count, allowed int) string {
	if count == 0 && allowed == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%s)", thousands(count), thousands(allowed))
}

func machineClass(index int) string { return fmt.Sprintf("m%d", index%machineColours) }

// drawShares as bars; the band is what is allowed around the ideal.
func (r *Report) drawShares(d *drawing, top int) {
	if len(r.Shares) == 0 {
		return
	}
	d.text(margin, top, "head", "shares of %s new connections; line: ideal, band: allowed", thousands(r.NewConnections))
	most := 0.0
	for _, s := range r.Shares {
		most = max(most, s.Share, s.Ideal*(1+s.Tolerance()))
	}
	scale := sharesWidth / most
	for i, s := range r.Shares {
		y := top + 26 + i*24
		begin := float64(margin + sharesLabel)
		d.text(margin, y, "", "%s", s.Backend)
		d.box(begin, y-11, s.Share*scale, 12, "share")
		ideal := begin + s.Ideal*scale
		around := s.Ideal * s.Tolerance() * scale
		d.box(ideal-around, y-14, 2*around, 18, "band")
		d.line(ideal, float64(y-14), ideal, float64(y+4), "ideal")
		d.text(margin+sharesLabel+sharesWidth+62, y, "end", "%.2f %%", 100*s.Share)
	}
}

func (r *Report) drawFigures(d *drawing, top int) {
	withdrawn := "-"
	if r.WithdrawMS != nil {
		withdrawn = fmt.Sprintf("%.1f ms", *r.WithdrawMS)
	}
	for i, figure := range [][2]string{
		{thousands(int(r.UnaccountedPackets)), "packets unaccounted for"},
		{fmt.Sprint(r.ChecksumErrors), "wrong checksums, in all namespaces"},
		{thousands(r.FlowsLookedUp), fmt.Sprintf("flows looked up, %d of them on two workers", r.FlowsSeenTwice)},
		{withdrawn, "from SIGKILL until traffic had left"},
	} {
		y := top + 20 + i*32
		d.text(figuresBegin+86, y, "figure end", "%s", figure[0])
		d.text(figuresBegin+98, y, "", "%s", figure[1])
	}
}
