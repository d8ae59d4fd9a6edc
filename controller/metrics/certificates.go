package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var daysLeft = describe("guideway_api_certificate_days_left", "Days until a certificate of api.tls expires: cert_file, or the first to expire of ca_file. Negative: it has.", "file")

// certificateCollector reads when certificates expire.
type certificateCollector func() map[string]time.Time

func (c certificateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- daysLeft
}

func (c certificateCollector) Collect(metrics chan<- prometheus.Metric) {
	for file, expiry := range c() {
		metrics <- prometheus.MustNewConstMetric(daysLeft, prometheus.GaugeValue, time.Until(expiry).Hours()/24, file)
	}
}
