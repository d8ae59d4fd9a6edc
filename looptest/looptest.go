// Package looptest helps tests on loopback: it provides unused ports, directories, a
// certificate authority that programs trust or refuse, network namespaces, and our own programs.
// Only tests import it.
package looptest

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Ports are chosen where the kernel chooses none for clients' ends
// (net.ipv4.ip_local_port_range, from 32768 on unless it was changed): a port that
// was free a moment ago is not taken by another test's connection.
const portFirst, portLast = 10_000, 29_999

// FreePort of TCP, on no address of this machine in use.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	for range 100 {
		port := portFirst + rand.IntN(portLast-portFirst+1)
		listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return uint16(port)
	}
	t.Fatalf("no free port was found among %d to %d", portFirst, portLast)
	return 0
}

// FreeAddress of IPv4 that nothing listens on.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), FreePort(t)).String()
}

// Where Linux keeps files in memory, and how many bytes have to be free there.
const (
	memory      = "/dev/shm"
	memoryBytes = 1 << 30
)

// Dir is a directory that ends with the test. Its path is short: a socket's has 107 bytes at most,
// and t.TempDir has the test's name in it. It is in memory, if there is room: a disk that a build
// writes to takes ten seconds to sync a file, for which a server's clients do not wait.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(roomInMemory(), "gw-test-"+strconv.Itoa(os.Getpid())+"-") // tools/stages.sh removes what killed ones leave
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// roomInMemory for files, also for programs; "" means that there is none.
func roomInMemory() string {
	var found unix.Statfs_t
	if err := unix.Statfs(memory, &found); err != nil || found.Type != unix.TMPFS_MAGIC || found.Flags&unix.ST_NOEXEC != 0 || found.Bavail*uint64(found.Bsize) < memoryBytes {
		return ""
	}
	return memory
}
