package hosts

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// One process's wall clock is stepped, and no other's: time namespaces leave
// CLOCK_REALTIME alone, and a preloaded library does not reach a static Go program.
// But every program here reads the clock through the code that the kernel maps into
// it, the vDSO (vdso(7)). Its functions are replaced in that process by ones that
// make the system call and then add the step. Monotonic clocks stay as they are, as
// when a real clock is stepped.

// StepClock of a process of a load balancer by a number of whole seconds from what the
// machine's clock has; 0 ends that. A new process begins with the machine's clock.
func (lab *Lab) StepClock(name, process string, step time.Duration) error {
	p, known := lab.find(name, process)
	if !known || !p.alive() {
		return fmt.Errorf("step the clock of %s/%s: it does not run", name, process)
	}
	if err := stepClock(p.Pid, step); err != nil {
		return fmt.Errorf("step the clock of %s/%s: %w", name, process, err)
	}
	return nil
}

// CanStepClocks: why not, if so.
func CanStepClocks() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the vDSO's code is replaced on amd64 only, and this is %s", runtime.GOARCH)
	}
	return nil
}

// The functions, each by what replaces it. A step of 32 bits is 68 years.
var clockFunctions = map[string]func(step int32) []byte{
	// The call; unless it failed, for CLOCK_REALTIME (0) and CLOCK_REALTIME_COARSE
	// (5), add to *(int64 *)rsi.
	"__vdso_clock_gettime": func(step int32) []byte {
		return code("b8 e4 00 00 00", "0f 05", "85 c0", "75 10", "85 ff", "74 05", "83 ff 05", "75 07", "48 81 06", step, "c3")
	},
	// The call; where rdi is not null, add to *(int64 *)rdi.
	"__vdso_gettimeofday": func(step int32) []byte {
		return code("b8 60 00 00 00", "0f 05", "48 85 ff", "74 07", "48 81 07", step, "c3")
	},
	// The call; add to rax, and where rdi is not null store it there.
	"__vdso_time": func(step int32) []byte {
		return code("b8 c9 00 00 00", "0f 05", "48 05", step, "48 85 ff", "74 03", "48 89 07", "c3")
	},
}

func code(parts ...any) []byte {
	var out []byte
	for _, part := range parts {
		switch part := part.(type) {
		case int32:
			out = binary.LittleEndian.AppendUint32(out, uint32(part))
		case string:
			for _, text := range strings.Fields(part) {
				var octet byte
				_, _ = fmt.Sscanf(text, "%02x", &octet) // written above
				out = append(out, octet)
			}
		}
	}
	return out
}

// A jump to the replacement, in the place of a function's first bytes.
const jumpBytes = 5

// roomBytes of each replacement.
const roomBytes = 64

func stepClock(pid int, step time.Duration) error {
	if err := CanStepClocks(); err != nil {
		return err
	}
	seconds := int32(step / time.Second)
	for range 100 {
		written, err := whileStopped(pid, func() (bool, error) { return patchClock(pid, seconds) })
		if written || err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // a thread stood where the jump goes
	}
	return errors.New("its threads stand in the code that is to be replaced")
}

// whileStopped does something while no thread of the process runs.
func whileStopped(pid int, do func() (bool, error)) (bool, error) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return false, err
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	for end := time.Now().Add(time.Second); !allStopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false, errors.New("it does not stop")
		}
	}
	return do()
}

func allStopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is good
	for _, file := range stats {
		content, err := os.ReadFile(file)
		end := bytes.LastIndexByte(content, ')')
		if err == nil && (end < 0 || end+2 >= len(content) || content[end+2] != 'T') {
			return false
		}
	}
	return len(stats) > 0
}

// patchClock of a stopped process; false: a thread stands where a jump would be
// written.
func patchClock(pid int, seconds int32) (bool, error) {
	start, image, err := readVDSO(pid)
	if err != nil {
		return false, err
	}
	entries, err := functionsOf(image)
	if err != nil {
		return false, err
	}
	standing, err := programCounters(pid)
	if err != nil {
		return false, err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return false, err
	}
	defer memory.Close()
	// The mapping's end has no code: the replacements go there.
	end := len(image)
	for name, replacement := range clockFunctions {
		entry := entries[name]
		end -= roomBytes
		room := end
		for _, counter := range standing {
			if counter > start+entry && counter < start+entry+jumpBytes {
				return false, nil
			}
		}
		if image[entry] != 0xe9 && !empty(image[room:room+roomBytes]) {
			return false, errors.New("the vDSO has no room for more code")
		}
		if image[entry] == 0xe9 { // stepped before: its replacement is where the jump goes
			room = int(int32(binary.LittleEndian.Uint32(image[entry+1:]))) + int(entry) + jumpBytes
		}
		jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int32(room)-int32(entry)-jumpBytes))
		if _, err := memory.WriteAt(replacement(seconds), int64(start)+int64(room)); err != nil {
			return false, fmt.Errorf("write %s: %w", name, err)
		}
		if _, err := memory.WriteAt(jump, int64(start+entry)); err != nil {
			return false, fmt.Errorf("write %s: %w", name, err)
		}
	}
	return true, nil
}

func empty(bytes []byte) bool {
	for _, octet := range bytes {
		if octet != 0 {
			return false
		}
	}
	return true
}

// readVDSO of a process: where it is mapped, and what is there.
func readVDSO(pid int) (start uint64, image []byte, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(string(maps)) {
		var end uint64
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
			return 0, nil, fmt.Errorf("read %q: %w", line, err)
		}
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return 0, nil, err
		}
		defer memory.Close()
		image = make([]byte, end-start)
		_, err = memory.ReadAt(image, int64(start))
		return start, image, err
	}
	return 0, nil, errors.New("it has no vDSO")
}

func functionsOf(image []byte) (map[string]uint64, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	entries := map[string]uint64{}
	for _, symbol := range symbols {
		if _, wanted := clockFunctions[symbol.Name]; wanted {
			entries[symbol.Name] = symbol.Value
		}
	}
	if len(entries) != len(clockFunctions) {
		return nil, fmt.Errorf("the vDSO has only %d of %d functions", len(entries), len(clockFunctions))
	}
	return entries, nil
}

// programCounters of all threads: the last word of /proc/<pid>/task/<tid>/syscall.
func programCounters(pid int) ([]uint64, error) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid)) // the pattern is good
	var counters []uint64
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		words := strings.Fields(string(content))
		var counter uint64
		if _, err := fmt.Sscanf(words[len(words)-1], "0x%x", &counter); err != nil {
			return nil, fmt.Errorf("where a thread stands is not known: %q", content)
		}
		counters = append(counters, counter)
	}
	return counters, nil
}
