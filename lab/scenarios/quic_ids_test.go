package scenarios_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/guideway/guideway/lab/hosts"
)

// idMaker makes the connection ids of one backend by one config, as
// draft-ietf-quic-load-balancers-21 says: written from the draft, the other way round
// than the forwarder reads them.
type idMaker struct {
	config     byte
	serverID   []byte
	nonceBytes int
	// nil: ids are plain.
	key cipher.Block
}

// ConnectionIDLen is quic-go's name for it.
func (m idMaker) ConnectionIDLen() int { return 1 + len(m.serverID) + m.nonceBytes }

// GenerateConnectionID with another nonce each time.
func (m idMaker) GenerateConnectionID() (quic.ConnectionID, error) {
	random := make([]byte, 1+m.nonceBytes)
	if _, err := rand.Read(random); err != nil {
		return quic.ConnectionID{}, err
	}
	id := []byte{m.config<<5 | random[0]>>3}
	return quic.ConnectionIDFromBytes(append(id, m.encrypt(random[1:])...)), nil
}

// encrypt server id and nonce (section 5.4).
func (m idMaker) encrypt(nonce []byte) []byte {
	text := slices.Concat(m.serverID, nonce)
	switch {
	case m.key == nil:
	case len(text) == aes.BlockSize:
		m.key.Encrypt(text, text)
	default:
		text = fourPasses(m.key, text)
	}
	return text
}

// fourPasses of section 5.4.2.2. Of an odd number of bytes either half has four bits of
// the one in the middle.
func fourPasses(key cipher.Block, text []byte) []byte {
	half, isOdd := (len(text)+1)/2, len(text)%2 == 1
	left, right := slices.Clone(text[:half]), slices.Clone(text[len(text)-half:])
	pass := func(number byte, from, to []byte) {
		if isOdd {
			left[half-1], right[0] = left[half-1]&0xf0, right[0]&0x0f
		}
		block := make([]byte, aes.BlockSize)
		copy(block, from)
		block[14], block[15] = byte(len(text)), number
		key.Encrypt(block, block)
		subtle.XORBytes(to, to, block[:half])
	}
	pass(1, left, right)
	pass(2, right, left)
	pass(3, left, right)
	pass(4, right, left)
	if isOdd {
		right[0] = left[half-1]&0xf0 | right[0]&0x0f
	}
	return slices.Concat(left[:len(text)-half], right)
}

// quicLine is what `guideway config backend` prints of one config.
var quicLine = regexp.MustCompile(`(?m)^# service=(\S+) use="[^"]*" config_id=(\d) server_id=([0-9a-f]+) nonce_bytes=(\d+) connection_id_bytes=(\d+) key=(\S+)$`)

// idMakers of a backend's configs, by their ids, as an operator would set them up: from
// what the CLI prints.
func idMakers(t *testing.T, running *hosts.Lab, service, backend string) map[int]idMaker {
	t.Helper()
	machine := running.LoadBalancers()[0]
	node, err := running.Network.LoadBalancer(machine)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(running.Options().RunDir, machine, "config.yaml")
	printed, err := guideway(t, running, node.Namespace, "config", "backend", backend, file)
	if err != nil {
		t.Fatal(err)
	}
	makers := map[int]idMaker{}
	for _, fields := range quicLine.FindAllStringSubmatch(printed, -1) {
		if fields[1] != service {
			continue
		}
		maker, err := newIDMaker(fields[2], fields[3], fields[4], fields[6])
		if err != nil {
			t.Fatalf("%s: %v", fields[0], err)
		}
		if bytes := strconv.Itoa(maker.ConnectionIDLen()); bytes != fields[5] {
			t.Fatalf("%s: these are %s bytes", fields[0], bytes)
		}
		makers[int(maker.config)] = maker
	}
	return makers
}

func newIDMaker(config, serverID, nonceBytes, key string) (maker idMaker, err error) {
	number, err := strconv.Atoi(config)
	if err != nil {
		return maker, err
	}
	maker.config = byte(number)
	if maker.serverID, err = hex.DecodeString(serverID); err != nil {
		return maker, err
	}
	if maker.nonceBytes, err = strconv.Atoi(nonceBytes); err != nil || key == "none" {
		return maker, err
	}
	bytes, err := hex.DecodeString(key)
	if err != nil {
		return maker, err
	}
	maker.key, err = aes.NewCipher(bytes)
	return maker, err
}

// The ids that the lab's servers make are those of the vectors, which are worked out
// apart from this and from the forwarder.
func TestConnectionIDsAreMadeAsTheVectorsSay(t *testing.T) {
	content, err := os.ReadFile("../../vectors/quic_lb.json")
	if err != nil {
		t.Fatal(err)
	}
	type keyOf struct {
		Cluster, Secret string
		Config          uint32
	}
	var vectors struct {
		Keys []struct {
			keyOf
			Key string
		}
		ConnectionIDs []struct {
			keyOf
			Encrypted    bool
			ServerID     string `json:"server_id"`
			Nonce        string
			ConnectionID string `json:"connection_id"`
		} `json:"connection_ids"`
	}
	if err := json.Unmarshal(content, &vectors); err != nil || len(vectors.ConnectionIDs) == 0 {
		t.Fatal(err, len(vectors.ConnectionIDs))
	}
	keys := map[keyOf]string{}
	for _, k := range vectors.Keys {
		keys[k.keyOf] = k.Key
	}
	for _, v := range vectors.ConnectionIDs {
		key := "none"
		if v.Encrypted {
			key = keys[v.keyOf]
		}
		nonce, err := hex.DecodeString(v.Nonce)
		if err != nil {
			t.Fatal(err)
		}
		maker, err := newIDMaker(fmt.Sprint(v.Config), v.ServerID, fmt.Sprint(len(nonce)), key)
		if err != nil {
			t.Fatal(err)
		}
		// The first byte's lower bits are random.
		if got := hex.EncodeToString(maker.encrypt(nonce)); got != v.ConnectionID[2:] {
			t.Errorf("%+v: made %s", v, got)
		}
	}
}
