package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// serveBackends answers HTTP at every backend's address, and fails at those that
// it is told to, and floods services: `-bin` names the socket on which it is told.
func serveBackends() error {
	control, err := net.Dial("unix", flag.Lookup("bin").Value.String())
	if err != nil {
		return err
	}
	if err := backendsNetwork(); err != nil {
		return err
	}
	var down sync.Map
	go func() {
		_ = http.ListenAndServe(":80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			local := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
			if _, isDown := down.Load(local.IP.String()); isDown {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
	}()
	if _, err := fmt.Fprintln(control, "ready"); err != nil {
		return err
	}
	lines := bufio.NewScanner(control)
	stopFlood := func() {}
	for lines.Scan() {
		var order, what string
		fmt.Sscan(lines.Text(), &order, &what)
		switch order {
		case "down":
			down.Store(what, true)
		case "up":
			down.Delete(what)
		case "flood":
			stopFlood()
			var ctx context.Context
			ctx, stopFlood = context.WithCancel(context.Background())
			if services, err := strconv.Atoi(what); err == nil && services > 0 {
				go func() {
					if err := floodServices(ctx, services); err != nil {
						log.Print(err)
					}
				}()
			}
		}
	}
	stopFlood()
	return lines.Err()
}

// backendsNetwork waits for the veth and makes every address behind it local.
func backendsNetwork() error {
	for range 500 {
		if _, err := net.InterfaceByName("gw1"); err == nil {
			return errors.Join(
				run("ip", "link", "set", "lo", "up"),
				run("ip", "address", "add", "10.0.0.2/24", "dev", "gw1"),
				run("ip", "link", "set", "gw1", "up"),
				run("ip", "route", "add", "local", "10.64.0.0/12", "dev", "lo"),
				run("ip", "route", "add", "198.18.0.0/15", "via", "10.0.0.1"),
			)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("gw1 did not come")
}
