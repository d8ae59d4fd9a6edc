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
			capture = append(capture, udpRecord(payload)...)
			kind := map[string]int{"state": 1, "answer": 2}[d.Kind]
			want = append(want, fmt.Sprintf("%d %d %d 0x%s %s %d %s %s %s", kind, d.Part, d.Parts, d.Boot, d.Nonce, d.Sequence, v.KeyID, v.Agent, d.Body))
		}
	}
	capture = append(capture, udpRecord([]byte("GWAG, cut off"))...)
	file := filepath.Join(t.TempDir(), "messages.pcap")
	if err := os.WriteFile(file, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"-n", "-r", file, "-X", "lua_script:wireshark/guideway.lua", "-T", "fields", "-E", "separator=/s"}
	for _, field := range []string{"kind", "part", "parts", "boot", "nonce", "sequence", "key_id", "agent", "body"} {
		arguments = append(arguments, "-e", "guideway_agent."+field)
	}
	shown, err := exec.Command(tshark, append(arguments, "-Y", "guideway_agent && !guideway_agent.malformed")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimRight(strings.ReplaceAll(string(shown), ":\n", "\n"), "\n"), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("shown:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	malformed, err := exec.Command(tshark, append(arguments, "-Y", "guideway_agent.malformed")...).Output()
	if err != nil || bytes.Count(malformed, []byte("\n")) != 1 {
		t.Errorf("malformed: %q, %v; want one", malformed, err)
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

// udpRecord of a datagram to the port of agents' messages.
func udpRecord(payload []byte) []byte {
	packet := make([]byte, 28, 28+len(payload))
	copy(packet, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 11, 10, 0, 0, 1})
	binary.BigEndian.PutUint16(packet[2:], uint16(28+len(payload)))
	binary.BigEndian.PutUint16(packet[20:], 40000)
	binary.BigEndian.PutUint16(packet[22:], 9475)
	binary.BigEndian.PutUint16(packet[24:], uint16(8+len(payload)))
	packet = append(packet, payload...)
	record := make([]byte, 16)
	binary.LittleEndian.PutUint32(record[8:], uint32(len(packet)))
	binary.LittleEndian.PutUint32(record[12:], uint32(len(packet)))
	return append(record, packet...)
}
