package diagnose

// Writes pcapng (draft-ietf-opsawg-pcapng) with nanosecond times, Ethernet frames, and a
// comment for each packet.

import (
	"encoding/binary"
	"fmt"
	"io"
)

const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	byteOrderMagic = 0x1a2b3c4d
	linkEthernet   = 1

	optionEnd         = 0
	optionComment     = 1
	optionApplication = 4 // of a section
	optionName        = 2 // of an interface
	optionResolution  = 9 // of an interface
	nanoseconds       = 9 // negative power of ten
)

// pcapngWriter's methods write; the first error is theirs for good.
type pcapngWriter struct {
	w          io.Writer
	interfaces map[string]uint32
}

func newPcapngWriter(w io.Writer) (*pcapngWriter, error) {
	body := binary.LittleEndian.AppendUint32(nil, byteOrderMagic)
	body = binary.LittleEndian.AppendUint16(body, 1)         // version 1.0
	body = binary.LittleEndian.AppendUint16(body, 0)         //
	body = binary.LittleEndian.AppendUint64(body, 1<<64-1)   // length not known
	body = appendOption(body, optionApplication, "guideway") //
	p := &pcapngWriter{w: w, interfaces: map[string]uint32{}}
	return p, p.block(blockSection, appendOption(body, optionEnd, ""))
}

// write adds a packet; one of an interface not seen before describes it first.
func (p *pcapngWriter) write(device string, timeNs uint64, frame []byte, comment string) error {
	index, known := p.interfaces[device]
	if !known {
		index = uint32(len(p.interfaces))
		p.interfaces[device] = index
		if err := p.describe(device); err != nil {
			return err
		}
	}
	body := binary.LittleEndian.AppendUint32(nil, index)
	body = binary.LittleEndian.AppendUint32(body, uint32(timeNs>>32))
	body = binary.LittleEndian.AppendUint32(body, uint32(timeNs))
	body = binary.LittleEndian.AppendUint32(body, uint32(len(frame)))
	body = binary.LittleEndian.AppendUint32(body, uint32(len(frame)))
	body = pad(append(body, frame...))
	body = appendOption(body, optionComment, comment)
	return p.block(blockPacket, appendOption(body, optionEnd, ""))
}

func (p *pcapngWriter) describe(device string) error {
	body := binary.LittleEndian.AppendUint16(nil, linkEthernet)
	body = binary.LittleEndian.AppendUint16(body, 0) // reserved
	body = binary.LittleEndian.AppendUint32(body, 0) // no limit to a packet's length
	body = appendOption(body, optionName, device)
	body = appendOption(body, optionResolution, string([]byte{nanoseconds}))
	return p.block(blockInterface, appendOption(body, optionEnd, ""))
}

func (p *pcapngWriter) block(kind uint32, body []byte) error {
	length := uint32(len(body) + 12) // type and length, and length again
	block := binary.LittleEndian.AppendUint32(nil, kind)
	block = binary.LittleEndian.AppendUint32(block, length)
	block = append(block, body...)
	block = binary.LittleEndian.AppendUint32(block, length)
	if _, err := p.w.Write(block); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	return nil
}

func appendOption(body []byte, code uint16, value string) []byte {
	body = binary.LittleEndian.AppendUint16(body, code)
	body = binary.LittleEndian.AppendUint16(body, uint16(len(value)))
	return pad(append(body, value...))
}

// pad to whole words.
func pad(bytes []byte) []byte {
	for len(bytes)%4 != 0 {
		bytes = append(bytes, 0)
	}
	return bytes
}
