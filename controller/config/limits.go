package config

// The limits of a config, each with its arithmetic.
const (
	// FilesBytesMax of all files together. 65,000 backends at some 60 bytes a line are
	// 4 MB, 10,000 services at some 300 bytes 3 MB.
	FilesBytesMax = 16 << 20
	// Characters that separate values, in all files together: an upper bound,
	// known before anything is parsed, of how much memory the parser takes, some
	// 300 bytes for each (900 MB). 65,000 backends with IPv6 addresses have 15
	// each, 10,000 services some 60: together 1.6 million.
	separatorsMax = 3_000_000
	// What one file that the config names may hold: a secret or a password.
	namedFileBytesMax = 1 << 20
	// Backends of one source of members. A file of 1 MiB (namedFileBytesMax) has some 20,000
	// addresses, a DNS message of 64 KiB some 4,000.
	MembersMax = 10_000
	// Of a file with them: 10,000 targets, each with two labels in lines of their own, have
	// some 14 each. The parser takes some 300 bytes for each: 60 MB.
	memberSeparatorsMax = 200_000
	// MemberWeightMax of a backend; the rule of `weight` says the same.
	MemberWeightMax = 1000
	// YAML nodes read, aliases counted at each use, so that a few lines of
	// aliases of aliases cannot fill the memory. 65,000 backends with three
	// fields, and 10,000 services with twenty, are below a million.
	nodesMax = 4_000_000

	// Services of one shard, as many as the forwarder's plan crate takes.
	servicesMax = 10_000
	// Addresses and prefixes of one family of one shard's VIPs: entries of the
	// forwarder's XDP filter (PREFIXES_MAX of nic/src/filter.rs). While a plan
	// takes the place of another it holds those of both.
	filterPrefixesMax = 65_536
	// Backends of all services: the forwarder's ids have 16 bits; the rest is
	// room for ids that are not free yet.
	backendsMax = 65_000
	// Probes through tunnels: backends times VIPs times checks. Each has a schedule
	// of some 4 KB in the controller: 260 MB.
	tunnelProbesMax = 65_000
	// Those that a config may make that does not ask for them: a direct check is one probe
	// for each backend, however many VIPs it serves.
	tunnelProbesAutoMax = 4096
	// Members of all sets of pools together, where pools are in several: each
	// is some 30 bytes in the plan, which so stays below 64 MB.
	membersMax = 2_000_000
	// Port ranges of one shard, twice each (TCP and UDP): the forwarder counts
	// for each in 16 bytes per worker.
	matchesMax = 1_000_000
	// Bytes of the distinct tables of one shard, two for each entry.
	tableBytesMax = 1 << 30
	// The largest table's entries; the schema's rule says the same.
	tableSizeMax = 655_373
	// A table's entries per backend below which the shares' error is warned about.
	tableEntriesPerBackend = 100

	// Bytes that every link carries of IPv6 (RFC 8200), and of the shortest outer header.
	ipv6BytesMin    = 1280
	ipv4HeaderBytes = 20

	// Of one route, of each kind: a BGP message has 4,096 bytes, they take 16 each
	// together, and the rest is for a route and its other attributes.
	communitiesMax = 200

	// The secret's bytes: as many as the key of AES-128 that is made of it.
	secretBytesMin = 16
	// TCP_MD5SIG_MAXKEYLEN of the kernel.
	passwordBytesMax = 80
)
