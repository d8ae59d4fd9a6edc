package config

// The limits of a config, each with its arithmetic.
const (
	// A file's bytes. 65,000 backends at some 60 bytes a line are 4 MB.
	fileBytesMax = 64 << 20
	// YAML nodes read, aliases counted at each use, so that a few lines of
	// aliases of aliases cannot fill the memory. 65,000 backends with three
	// fields, and 10,000 services with twenty, are below a million.
	nodesMax = 4_000_000

	// Services of one shard, as many as the forwarder's plan crate takes.
	servicesMax = 10_000
	// Backends of all services: the forwarder's ids have 16 bits; the rest is
	// room for ids that are not free yet.
	backendsMax = 65_000
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

	// The secret's bytes: as many as the key of AES-128 that is made of it.
	secretBytesMin = 16
	// TCP_MD5SIG_MAXKEYLEN of the kernel.
	passwordBytesMax = 80
)
