package packaging

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The dissector shows of agents' messages what the vectors say that they hold.
func TestTheDissectorKnowsAgentsMessages(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	text, err := os.ReadFile("../vectors/agent_messages.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Agent     string
		KeyID     string `json:"key_id"`
		Datagrams []struct {
			Kind, Boot, Nonce, Body, Datagram string
			Part, Parts                       uint8
			Sequence                          uint64
		}
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	capture := pcapHeader()
	var want []string
	for _, v := range vectors {
		for _, d := range v.Datagrams {
			payload, err := hex.DecodeString(d.Datagram)
			if err != nil {
				t.Fatal(err)
			}
			port := uint16(9475)
			if strings.HasPrefix(d.Kind, "rules") {
				port = 9476
			}
			capture = append(capture, udpRecord(port, payload)...)
			kind := map[string]int{"state": 1, "answer": 2, "rules": 3, "rules_answer": 4}[d.Kind]
			want = append(want, fmt.Sprintf("%d %d %d 0x%s %s %d %s %s %s", kind, d.Part, d.Parts, d.Boot, d.Nonce, d.Sequence, v.KeyID, v.Agent, d.Body))
		}
	}
	capture = append(capture, udpRecord(9475, []byte("GWAG, cut off"))...)
	file := filepath.Join(t.TempDir(), "messages.pcap")
	if err := os.WriteFile(file, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"-n", "-r", file, "-X", "lua_script:wireshark/guideway.lua", "-T", "fields", "-E", "separator=/s"}
	for _, field := range []string{"kind", "part", "parts", "boot", "nonce", "sequence", "key_id", "agent", "body"} {
		arguments = append(arguments, "-e", "guideway_agent."+field)
	}
	shown, err := tsharkOf(tshark, append(arguments, "-Y", "guideway_agent && !guideway_agent.malformed")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimRight(strings.ReplaceAll(string(shown), ":\n", "\n"), "\n"), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("shown:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	malformed, err := tsharkOf(tshark, append(arguments, "-Y", "guideway_agent.malformed")...).Output()
	if err != nil || bytes.Count(malformed, []byte("\n")) != 1 {
		t.Errorf("malformed: %q, %v; want one", malformed, err)
	}
}

// The dissector shows of Multipath TCP options what the vectors say that they hold.
func TestTheDissectorKnowsMultipathOptions(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	text, err := os.ReadFile("../vectors/multipath.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Options []struct {
			Key, Address, Option string
			Bucket               uint16
		}
		Malformed []struct{ Option string }
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	capture := pcapHeader()
	add := func(option string) {
		bytes, err := hex.DecodeString(option)
		if err != nil {
			t.Fatal(err)
		}
		// Geneve with one critical option, and nothing inside.
		header := []byte{byte(len(bytes) / 4), 0x40, 0x08, 0, 0, 0, 0, 0}
		capture = append(capture, udpRecord(6081, append(header, bytes...))...)
	}
	var want []string
	for _, v := range vectors.Options {
		key := v.Key
		if key == "" {
			key = strings.Repeat("0", 16)
		}
		want = append(want, fmt.Sprintf("0x%s %d %s", key, v.Bucket, v.Address))
		add(v.Option)
	}
	for _, v := range vectors.Malformed {
		add(v.Option)
	}
	file := filepath.Join(t.TempDir(), "options.pcap")
	if err := os.WriteFile(file, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"-n", "-r", file, "-X", "lua_script:wireshark/guideway.lua", "-T", "fields", "-E", "separator=/s"}
	for _, field := range []string{"key", "bucket", "ipv4", "ipv6"} {
		arguments = append(arguments, "-e", "guideway.multipath."+field)
	}
	shown, err := tsharkOf(tshark, append(arguments, "-Y", "guideway && !guideway.malformed")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(shown)) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("shown:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	malformed, err := tsharkOf(tshark, append(arguments, "-Y", "guideway.malformed")...).Output()
	if err != nil || bytes.Count(malformed, []byte("\n")) != len(vectors.Malformed) {
		t.Errorf("malformed: %q, %v; want %d", malformed, err, len(vectors.Malformed))
	}
}

// pcapHeader of captures of bare IPv4 packets.
func pcapHeader() []byte {
	header := make([]byte, 24)
	binary.LittleEndian.PutUint32(header, 0xa1b2c3d4)
	binary.LittleEndian.PutUint16(header[4:], 2)
	binary.LittleEndian.PutUint16(header[6:], 4)
	binary.LittleEndian.PutUint32(header[16:], 65535)
	binary.LittleEndian.PutUint32(header[20:], 228) // LINKTYPE_IPV4
	return header
}

// udpRecord of a datagram to that port.
func udpRecord(port uint16, payload []byte) []byte {
	packet := make([]byte, 28, 28+len(payload))
	copy(packet, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 11, 10, 0, 0, 1})
	binary.BigEndian.PutUint16(packet[2:], uint16(28+len(payload)))
	binary.BigEndian.PutUint16(packet[20:], 40000)
	binary.BigEndian.PutUint16(packet[22:], port)
	binary.BigEndian.PutUint16(packet[24:], uint16(8+len(payload)))
	packet = append(packet, payload...)
	record := make([]byte, 16)
	binary.LittleEndian.PutUint32(record[8:], uint32(len(packet)))
	binary.LittleEndian.PutUint32(record[12:], uint32(len(packet)))
	return append(record, packet...)
}

// tsharkOf a user who is not root: from 4.4 on it loads no script for root, as whom a user
// namespace does not count.
func tsharkOf(tshark string, arguments ...string) *exec.Cmd {
	command := exec.Command(tshark, arguments...)
	if os.Getuid() == 0 {
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	}
	return command
}
