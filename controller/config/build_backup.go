package config

// Builds a service's backends: its own, and its backups.

import (
	"fmt"
	"slices"
	"strings"
)

func (b *builder) servicePools(path string, service *Service) {
	b.poolNamesOf(path+".pools", service.Pools)
	b.poolNamesOf(path+".backup_pools", service.BackupPools)
	for i, name := range service.BackupPools {
		if slices.Contains(service.Pools, name) {
			b.errorf(fmt.Sprintf("%s.backup_pools[%d]", path, i), "%q is in pools, too: it cannot stand by for itself; remove it from one of them", name)
		}
	}
	service.Group = groupName(service)
	service.Members = b.flatten(service)
	own := 0
	for _, member := range service.Members {
		if !member.IsBackup {
			own++
		}
	}
	if n := len(service.Members); service.BackendsMin > max(1, n) && !b.hasSource(service) {
		b.errorf(path+".backends_min", "is %d, and the service has %d backends, those of backup_pools among them: it would always have too few; give at most %d", service.BackendsMin, n, n)
	}
	switch {
	case len(service.BackupPools) > 0 && own > 0 && own == len(service.Members):
		b.warnf(path+".backup_pools", "has no effect: pools have all of its backends, too")
	case service.BackendsMin > 1 && service.WhenNone == WhenNoneKeep && len(service.Spill)+len(service.BackupPools) == 0:
		b.warnf(path+".backends_min", "has no effect: with `when_none: keep` the route stays and the backends that are left go on; give backup_pools or spill, or another when_none")
	}
}

func (b *builder) poolNamesOf(path string, names []string) {
	for i, name := range names {
		field := fmt.Sprintf("%s[%d]", path, i)
		b.knownPool(field, name)
		if slices.Index(names, name) < i {
			b.errorf(field, "%q is listed twice: remove one", name)
		}
	}
}

// groupName is the same for the same pools in whatever order, if few active
// backends have the same consequence for the members' states. No name has a space
// in it, so what follows two spaces is none.
func groupName(service *Service) string {
	sorted := func(names []string) string { return strings.Join(slices.Sorted(slices.Values(names)), " ") }
	name := sorted(service.Pools)
	if len(service.BackupPools) > 0 {
		name += "  backup " + sorted(service.BackupPools)
	}
	if service.BackendsMin == 1 {
		return name
	}
	switch {
	case len(service.Spill) > 0:
		name += fmt.Sprintf("  below %d spill", service.BackendsMin)
		for _, spill := range service.Spill {
			name += " " + spill.Prefix.String()
		}
	case service.WhenNone == WhenNoneFailOpen:
		name += fmt.Sprintf("  below %d fail_open", service.BackendsMin)
	case len(service.BackupPools) > 0:
		name += fmt.Sprintf("  below %d", service.BackendsMin)
	}
	return name
}
