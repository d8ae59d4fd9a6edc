package keepalived

// What happens to keywords that have no counterpart in our configuration.

import (
	"strings"

	"google.golang.org/protobuf/proto"
)

// other keywords than those that are converted.
func (c *conversion) other(target proto.Message, i *item) {
	kind, why := fate(i)
	c.note(target, kind, i, "%s", why)
}

func fate(i *item) (kind Kind, why string) {
	if i.skipped != "" {
		return i.kind, i.skipped
	}
	if known, is := fates[i.keyword()]; is {
		return known.kind, known.why
	}
	for _, prefix := range ignoredPrefixes {
		if strings.HasPrefix(i.keyword(), prefix) {
			return Ignored, "no effect on what is served"
		}
	}
	return LeftOut, "unknown to this import: look up in keepalived.conf(5) whether it matters"
}

type known struct {
	kind Kind
	why  string
}

var fates = map[string]known{
	"notify_up": script, "notify_down": script, "quorum_up": script, "quorum_down": script,
	"failover_up": script, "failover_down": script,
	"startup_script": script, "shutdown_script": script,
	"startup_script_timeout": script, "shutdown_script_timeout": script,

	"MISC_CHECK": {LeftOut, "health checks run no scripts: give another check that finds the same"},
	"BFD_CHECK":  {LeftOut, "servers are not watched by BFD: give a health check"},
	"FILE_CHECK": {LeftOut, "health checks read no files: drain servers by `guideway drain backend`"},
	"digest":     {LeftOut, "bodies have no digest: give a text that must be there as `body`"},
	"bindto":     {LeftOut, "probes come from `machine.addresses`"}, "bind_if": {LeftOut, "probes follow the kernel's routes"},
	"bind_port": {LeftOut, "probes have source ports of their own"}, "fwmark": {LeftOut, "probes are not marked"},
	"http_protocol": {Differs, "probes speak HTTP/1.1"},

	"regex_options": {LeftOut, "bodies are not matched by patterns"}, "regex_stack": {Ignored, "bodies are not matched by patterns"},
	"regex_min_offset": {LeftOut, "bodies are searched from their beginning"}, "regex_max_offset": {LeftOut, "bodies are searched from their beginning"},
	"min_reply_length": {LeftOut, "an answer may have any length"}, "max_reply_length": {LeftOut, "an answer may have any length"},

	"uthreshold": {LeftOut, "a server's connections are not limited; `connections_quota` limits a service's"},
	"lthreshold": {LeftOut, "a server's connections are not limited; `connections_quota` limits a service's"},
	"hysteresis": {LeftOut, "no counterpart: `damping` of a pool keeps servers down that change again and again"},

	"persistence_engine": {LeftOut, "connections are not held together by SIP call"},
	"ops":                {Differs, "UDP flows are tracked, and each stays at its server"},
	"ha_suspend":         {Differs, "every load balancer probes at all times"},
	"alpha":              {Ignored, "new servers are always down until their first probe"},
	"omega":              {Ignored, "no script is run"},

	"sorry_server_inhibit": {LeftOut, "the sorry server is not checked"},

	"ip_family": {Ignored, "families are those of the addresses"},
	"SSL":       {LeftOut, "certificates for probes are given at each check (`https.tls`); probes have none of their own"},

	"lvs_sync_daemon": {Differs, "connections are not copied: all load balancers choose the same server for one (docs/start.md)"},

	"static_ipaddress": network, "static_routes": network, "static_rules": network,
	"interface_up_down_delays": vrrp, "linkbeat_interfaces": vrrp, "garp_group": vrrp,
	"static_track_group": vrrp, "vrrp_sync_group": vrrp, "vrrp_script": vrrp, "vrrp_track_process": vrrp,
	"vrrp_track_file": vrrp, "track_file": vrrp, "bfd_instance": {LeftOut, "BFD is for BGP neighbors (`bgp.neighbors[].bfd`)"},

	"smtp_alert": mail, "notification_email": mail, "notification_email_from": mail,
	"warmup": {Ignored, "new servers are probed at once"}, "fast_recovery": {Ignored, "each URL is a check with its own interval"},
	"tls_compliant": {Ignored, "no effect on the result"},
}

var (
	script  = known{LeftOut, "no script is run: use metrics and alerts (docs/monitoring.md)"}
	network = known{LeftOut, "addresses and routes are set up by the system's network configuration"}
	mail    = known{Ignored, "no mail is sent: use metrics and alerts (docs/monitoring.md)"}
)

// ignoredPrefixes of keywords about keepalived itself, mostly in global_defs.
var ignoredPrefixes = []string{
	"smtp_", "no_email_faults", "snmp_", "enable_snmp", "enable_traps", "enable_dbus", "dbus_", "log_all_failures", "router_id",
	"checker_", "bfd_", "vrrp_", "process_name", "lvs_flush", "instance", "use_pid_dir", "net_namespace", "namespace_", "nftables",
	"linkbeat_", "child_wait", "script_", "enable_script_security", "notify_fifo", "lvs_notify_fifo", "max_auto_priority",
	"min_auto_priority", "reload_", "config_save", "tmp_config", "default_interface", "use_symlink", "umask", "random_seed",
	"set_supplementary", "include_check", "disable_local_igmp", "v3_checksum", "data_use_instance", "iproute_", "json_",
}
