package topology

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// KernelCounters of a node (client, lb-1, be-2 ...) since the lab was built:
// `Tcp.InCsumErrors` as in /proc/net/snmp, `MPTcpExt.MPJoinAckRx` as in netstat,
// `Icmp6InPktTooBigs` as in snmp6.
func (network Network) KernelCounters(name string) (map[string]uint64, error) {
	n, err := network.Node(name)
	if err != nil {
		return nil, err
	}
	return KernelCounters(n.Namespace)
}

// KernelCounters of a namespace, since it was made; see Network.KernelCounters.
func KernelCounters(namespace string) (map[string]uint64, error) {
	counters := map[string]uint64{}
	err := Inside(namespace, func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		netstat, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		snmp6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		parseSnmp(string(snmp), counters)
		parseSnmp(string(netstat), counters)
		parseSnmp6(string(snmp6), counters)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the kernel's counters in %s: %w", namespace, err)
	}
	return counters, nil
}

// ChecksumErrors that the kernels of all namespaces have counted since the lab
// was built, TCP and UDP, both families.
func (network Network) ChecksumErrors() (uint64, error) {
	var sum uint64
	for _, namespace := range network.Namespaces() {
		counters, err := KernelCounters(namespace)
		if err != nil {
			return 0, err
		}
		// TCP's are those of both families.
		sum += counters["Tcp.InCsumErrors"] + counters["Udp.InCsumErrors"] + counters["Udp6InCsumErrors"]
	}
	return sum, nil
}

// parseSnmp of /proc/net/snmp and netstat: for each protocol a line of names, then one of
// values.
func parseSnmp(snmp string, counters map[string]uint64) {
	lines := strings.Split(snmp, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) == 0 || len(names) != len(values) {
			continue
		}
		protocol := strings.TrimSuffix(names[0], ":")
		for column := 1; column < len(names); column++ {
			// One that is not a count, as Tcp.MaxConn of -1, stays 0.
			counters[protocol+"."+names[column]], _ = strconv.ParseUint(values[column], 10, 64)
		}
	}
}

// parseSnmp6 of /proc/net/snmp6: a name and a value in each line.
func parseSnmp6(snmp6 string, counters map[string]uint64) {
	for line := range strings.Lines(snmp6) {
		if fields := strings.Fields(line); len(fields) == 2 {
			counters[fields[0]], _ = strconv.ParseUint(fields[1], 10, 64)
		}
	}
}
