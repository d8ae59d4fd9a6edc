package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// arrivals are when each address last had a connection, and the gaps between.
type arrivals struct {
	mu    sync.Mutex
	last  map[string]time.Time
	count int
	// Gaps longer than the interval, its jitter and a tenth of it; and the longest.
	late    int
	longest time.Duration
}

const longestGap = 1200 * time.Millisecond

func (a *arrivals) add(address string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, seen := a.last[address]; seen {
		gap := now.Sub(last)
		a.count++
		a.longest = max(a.longest, gap)
		if gap > longestGap {
			a.late++
		}
	}
	a.last[address] = now
}

// take what was counted since.
func (a *arrivals) take() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	text := fmt.Sprintln(a.count, a.late, a.longest.Nanoseconds())
	a.count, a.late, a.longest = 0, 0, 0
	return text
}

func (a *arrivals) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.last)
}

// serve answers at every address: TCP at port 80, HTTP at 8080. For each line of
// its input it writes what came since the last one; `reset` forgets former ones.
func serve() error {
	seen := &arrivals{last: map[string]time.Time{}}
	tcp, err := net.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			seen.add(conn.LocalAddr().String(), time.Now())
			_ = conn.Close()
		}
	}()
	server := &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateNew {
				seen.add(conn.LocalAddr().String(), time.Now())
			}
		},
	}
	go func() { _ = server.Serve(web) }()
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "reset" {
			seen.reset()
		}
		fmt.Print(seen.take())
	}
	return lines.Err()
}
