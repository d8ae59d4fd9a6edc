package counters

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const rustPage = `
//! "guideway_in_a_comment" "is none"
fn info(page: &mut Page) {
    let mut info = page.metric("guideway_build_info", Gauge, "Version of the program.");
    info.sample(&[("program", "guideway-forwarder"), ("version", env!("X"))], 1);
    page.metric(
        "guideway_long_total",
        Counter,
        "In two \
         lines.",
    )
    .value(self.sum.iter().map(|c| c.get()).sum::<u64>());
}

fn named(&self, page: &mut Page) {
    fn labels(line: &Line) -> [(&str, &str); 2] {
        [("service", &line.service), ("vip", &line.vip)]
    }
    let mut packets = page.metric("guideway_vip_packets_total", Counter, "Packets, by VIP.");
    self.lines.iter().for_each(|line| packets.sample(&labels(line), line.packets));
    let mut each = |name, help, read: fn(&Counters) -> u64| {
        let mut metric = page.metric(name, Counter, help);
        for (interface, queue, counters) in &queues {
            metric.sample(&[("interface", interface), ("queue", queue)], read(counters));
        }
    };
    each("guideway_rx_packets_total", "Frames taken off receive rings.", |queue| queue.received);
    let mut up = page.metric("guideway_tap_up", Gauge, "1: there is one.");
    for port in ports {
        let labels = |result| [("interface", port.name), ("result", result)];
        up.sample(&labels("taken"), 1);
    }
}

#[cfg(test)]
mod tests {
    const NAME: &str = "guideway_of_a_test";
}
`

const goPage = `package metrics

var up = describe("guideway_backend_up", "1: it passes.", "service", "backend")

func register() {
	prometheus.NewCounterVec(prometheus.CounterOpts{Name: "guideway_checks_total", Help: "Probes."}, []string{"result"})
	prometheus.NewHistogram(prometheus.HistogramOpts{Name: "guideway_took_seconds", Help: "How long."})
	prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "guideway_go_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": v},
	}, one)
}
`

func list(metrics []Metric) string {
	var lines []string
	for _, m := range metrics {
		lines = append(lines, fmt.Sprintf("%s %s %v %s", m.Name, m.Kind, m.Labels, m.Help))
	}
	return strings.Join(lines, "\n")
}

func TestDefinitionsAreFoundInEachShape(t *testing.T) {
	metrics, problems := rustMetrics("page.rs", rustPage)
	want := `guideway_build_info gauge [program version] Version of the program.
guideway_long_total counter [] In two lines.
guideway_vip_packets_total counter [service vip] Packets, by VIP.
guideway_rx_packets_total counter [interface queue] Frames taken off receive rings.
guideway_tap_up gauge [interface result] 1: there is one.`
	if got := list(metrics); got != want || len(problems) > 0 {
		t.Errorf("Rust:\n%s\n%v", got, problems)
	}
	metrics, problems = goMetrics("page.go", goPage)
	want = `guideway_backend_up gauge [service backend] 1: it passes.
guideway_checks_total counter [result] Probes.
guideway_took_seconds histogram [] How long.
guideway_go_info gauge [version] Always 1.`
	if got := list(metrics); got != want || len(problems) > 0 {
		t.Errorf("Go:\n%s\n%v", got, problems)
	}
}

func TestTwiceTheSameNameIsAProblem(t *testing.T) {
	text := `fn f() { metric("guideway_x", Gauge, "A thing.").value(1); }`
	_, problems := Read(Tree{Paths: []string{"forwarder/src/a.rs", "forwarder/src/b.rs"}, Read: func(string) string { return text }})
	if !slices.ContainsFunc(problems, func(p Problem) bool {
		return p.Path == "forwarder/src/b.rs" && p.What == "guideway_x is defined twice"
	}) {
		t.Errorf("problems %v", problems)
	}
}

func TestATableIsReplacedAndAllElseStays(t *testing.T) {
	d := Definitions{Metrics: map[string][]Metric{"m": {{Name: "guideway_x", Kind: "gauge", Help: "X."}}}}
	document := "a\n<!-- table: m" + origin + "\nold\n<!-- end -->\nb\n<!-- table: " + reasonsTable + origin + "\n<!-- end -->\n"
	got, err := d.Update(document)
	want := "a\n<!-- table: m" + origin + "\n| metric | kind | meaning |\n|---|---|---|\n| `guideway_x` | gauge | X. |\n<!-- end -->\nb\n<!-- table: " +
		reasonsTable + origin + "\n| reason | meaning | usual cause |\n|---|---|---|\n<!-- end -->\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	again, err := d.Update(got)
	if err != nil || again != got || len(d.Differences(got)) > 0 {
		t.Errorf("it changes at a second time: %v", err)
	}
	for _, bad := range []string{"no table", "<!-- table: m" + origin + "\nnever ends", "<!-- table: other" + origin + "\n<!-- end -->"} {
		if _, err := d.Update(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
