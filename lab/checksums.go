package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ChecksumErrors that the kernels of all namespaces have counted since the lab
// was built, TCP and UDP, both families.
func (lab *Lab) ChecksumErrors() (uint64, error) {
	var sum uint64
	for _, namespace := range lab.layout.namespaces() {
		err := Inside(namespace, func() error {
			snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
			if err != nil {
				return err
			}
			snmp6, err := os.ReadFile("/proc/thread-self/net/snmp6")
			if err != nil {
				return err
			}
			sum += checksumErrors(string(snmp)) + checksumErrors6(string(snmp6))
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("read checksum errors of %s: %w", namespace, err)
		}
	}
	return sum, nil
}

// checksumErrors of /proc/net/snmp: for each protocol a line of names, then
// one of values. TCP's are those of both families.
func checksumErrors(snmp string) uint64 {
	var sum uint64
	lines := strings.Split(snmp, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) == 0 || len(names) != len(values) || names[0] != "Tcp:" && names[0] != "Udp:" {
			continue
		}
		for column, name := range names {
			if name == "InCsumErrors" {
				n, _ := strconv.ParseUint(values[column], 10, 64)
				sum += n
			}
		}
	}
	return sum
}

// checksumErrors6 of /proc/net/snmp6: a name and a value in each line.
func checksumErrors6(snmp6 string) uint64 {
	var sum uint64
	for line := range strings.Lines(snmp6) {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[0] == "Udp6InCsumErrors" {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			sum += n
		}
	}
	return sum
}
