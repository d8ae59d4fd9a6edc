// Package fleet has the data that the machines of a cluster share in etcd: the config, and
// the list of machines.
//
//	/guideway/<cluster>/current                      which generation is to run
//	/guideway/<cluster>/config/<generation>/<part>   its text, by zstd, in parts
//	/guideway/<cluster>/config/<generation>/record   who stored it, when and why
//	/guideway/<cluster>/config/candidate             what machines check before it is current
//	/guideway/<cluster>/config/canary                what one machine runs before the others
//	/guideway/<cluster>/overrides/<kind>/<name>      a backend or service that is drained on all machines
//	/guideway/<cluster>/machines/<name>              a machine whose controller lives
//	/guideway/<cluster>/maps/<service>               the bucket map of a stateless service
//	/guideway/<cluster>/leader/<shard>               the machine that assigns its buckets
//	/guideway/<cluster>/verdicts/<name>              what a live controller finds of backends
//	/guideway/<cluster>/acknowledgements/<name>      which maps a machine's forwarder runs
//
// It guarantees:
//   - A generation's text never changes once `current` names it.
//   - If two clients apply a config at once, one is refused.
//   - Text that does not match its digest is not passed on.
//   - A machine's key is written only by that machine.
//   - A bucket map is replaced only by the leader, after it has seen that map.
//
// It does not know what a machine does with a config. Nothing found there about other
// machines changes what this one forwards or announces, except bucket maps and drains.
package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// Bytes of one part: etcd refuses requests above 1.5 MiB.
	partBytesMax = 1 << 20
	// Parts of one config: text that zstd cannot compress becomes a little longer.
	partsMax = config.FilesBytesMax/partBytesMax + 1
	// Configs that are kept.
	recordsMax = 50
)

// keys below one cluster's prefix.
type keys struct{ prefix string }

func keysOf(cluster string) keys { return keys{prefix: "/guideway/" + cluster + "/"} }

func (k keys) current() string { return k.prefix + "current" }

func (k keys) configs() string { return k.prefix + "config/" }

func (k keys) config(generation uint64) string {
	return k.configs() + strconv.FormatUint(generation, 10) + "/"
}

func (k keys) part(generation uint64, part int) string {
	return k.config(generation) + strconv.Itoa(part)
}

func (k keys) record(generation uint64) string { return k.config(generation) + recordName }

const recordName = "record"

// Both below configs, which those who apply may write.
func (k keys) candidate() string { return k.configs() + "candidate" }
func (k keys) canary() string    { return k.configs() + "canary" }

// Of what is drained on all machines.
func (k keys) drains() string { return k.prefix + "overrides/" }

func (k keys) drain(what Drained) string { return k.drains() + what.String() }

func (k keys) machines() string { return k.prefix + "machines/" }

func (k keys) machine(name string) string { return k.machines() + name }

// Of bucket maps.
func (k keys) maps() string             { return k.prefix + "maps/" }
func (k keys) leaders() string          { return k.prefix + "leader/" }
func (k keys) verdicts() string         { return k.prefix + "verdicts/" }
func (k keys) acknowledgements() string { return k.prefix + "acknowledgements/" }

// shared are all of these.
func (k keys) shared() []string {
	return []string{k.maps(), k.leaders(), k.verdicts(), k.acknowledgements()}
}

// generationOf a key below configs; isRecord: it is no part.
func (k keys) generationOf(key string) (generation uint64, isRecord, ok bool) {
	number, name, ok := strings.Cut(strings.TrimPrefix(key, k.configs()), "/")
	generation, err := strconv.ParseUint(number, 10, 64)
	return generation, name == recordName, ok && err == nil
}

// digestOf a config's text, as sha256sum prints it.
func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// split compresses a config's text into parts.
func split(text []byte) ([][]byte, error) {
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		return nil, fmt.Errorf("compress the config: %w", err)
	}
	compressed := encoder.EncodeAll(text, nil)
	var parts [][]byte
	for len(compressed) > partBytesMax {
		parts = append(parts, compressed[:partBytesMax])
		compressed = compressed[partBytesMax:]
	}
	return append(parts, compressed), nil
}

// join is the opposite of split, for a text of at most config.FilesBytesMax with
// the digest given.
func join(parts [][]byte, digest string) ([]byte, error) {
	decoder, err := zstd.NewReader(bytes.NewReader(bytes.Join(parts, nil)), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	defer decoder.Close()
	text, err := io.ReadAll(io.LimitReader(decoder, config.FilesBytesMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("decompress: %w", err)
	case len(text) > config.FilesBytesMax:
		return nil, fmt.Errorf("it has more than %d MiB, the limit", config.FilesBytesMax>>20)
	}
	if found := digestOf(text); found != digest {
		return nil, fmt.Errorf("its digest is %s, and %s was stored", found, digest)
	}
	return text, nil
}

func isJump(running, next *fleetv1.Current) bool {
	return buckets.IsJump(running.GetGeneration(), next.GetGeneration())
}

// CheckNext returns why a machine that runs one config may not go to the other;
// nil where it may. Generation 0: it runs none from etcd.
func CheckNext(running, next *fleetv1.Current) error {
	const cure = "apply the config that is to run once more (`guideway config apply`, or `guideway config rollback`), which gives it a higher number than every machine has, or take what etcd holds by `guideway reload --accept-older` on each machine"
	switch {
	case isJump(running, next):
		return fmt.Errorf("etcd holds config %d but %d runs here: a jump that large was not made by Guideway; %s", next.GetGeneration(), running.GetGeneration(), cure)
	case next.GetGeneration() < running.GetGeneration():
		return fmt.Errorf("etcd holds config %d, and %d runs here: was etcd restored from an older snapshot? %s", next.GetGeneration(), running.GetGeneration(), cure)
	case next.GetGeneration() == running.GetGeneration() && next.GetDigest() != running.GetDigest():
		return fmt.Errorf("etcd holds another config under the number %d (digest %.12s) than runs here (%.12s): was etcd restored from an older snapshot? %s",
			next.GetGeneration(), next.GetDigest(), running.GetDigest(), cure)
	}
	return nil
}
