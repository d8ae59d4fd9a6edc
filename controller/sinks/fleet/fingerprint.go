package fleet

// Fingerprints for comparing machines: machines with equal ones choose the same backends
// for the same flows.

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/guideway/guideway/controller/config"
)

// Hex digits of a fingerprint.
const fingerprintDigits = 16

// ConfiguredFingerprint of what a config says about who gets which flow on this
// machine, by these lines (docs/etcd.md has them), for services in order of name
// and members in order of backend:
//
//	cluster KEY-ID
//	service NAME MODE AFFINITY TABLE-SIZE BUCKETS
//	member BACKEND ADDRESS WEIGHT backup|own
func ConfiguredFingerprint(c *config.Config) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "cluster %s\n", c.Cluster.KeyID)
	services := c.ServicesHere()
	slices.SortFunc(services, func(a, b config.Service) int { return cmp.Compare(a.Name, b.Name) })
	for i := range services {
		s := &services[i]
		fmt.Fprintf(sum, "service %s %s %s %d %d\n", s.Name, s.Mode, s.Affinity, s.TableSize, s.Buckets)
		for _, m := range s.Members {
			role := "own"
			if m.IsBackup {
				role = "backup"
			}
			fmt.Fprintf(sum, "member %s %s %d %s\n", m.Backend.Name, m.Backend.Address, m.Weight, role)
		}
	}
	return fingerprint(sum)
}

// The forwarder's, which alone builds tables.
const tableMetric = "guideway" + "_table_fingerprint"

// LiveFingerprint of the Maglev tables that a forwarder's page of metrics names.
// Empty: it names none.
func LiveFingerprint(page string) (string, error) {
	var tables strings.Builder
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, tableMetric+"{") {
			tables.WriteString(line)
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(tables.String()))
	if err != nil {
		return "", fmt.Errorf("the forwarder's %s: %w", tableMetric, err)
	}
	var lines []string
	for _, metric := range families[tableMetric].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		lines = append(lines, labels["service"]+" "+labels["fingerprint"]+"\n")
	}
	if len(lines) == 0 {
		return "", nil
	}
	slices.Sort(lines)
	sum := sha256.New()
	for _, line := range lines {
		fmt.Fprint(sum, line)
	}
	return fingerprint(sum), nil
}

func fingerprint(sum hash.Hash) string {
	return hex.EncodeToString(sum.Sum(nil))[:fingerprintDigits]
}
