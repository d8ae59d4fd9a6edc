package topology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Where iproute2 keeps named namespaces.
const namespaceDir = "/run/netns"

// Inside runs do on a thread that is in the named namespace.
//
// A namespace belongs to a thread, not to a goroutine. The thread goes back
// afterwards; if it cannot, it is never unlocked, so that the runtime does not
// reuse it elsewhere.
func Inside(namespace string, do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			result <- fmt.Errorf("open own namespace: %w", err)
			return
		}
		defer before.Close()
		err = enterAndDo(namespace, do)
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// DialInside connects from a namespace. The socket belongs there for good,
// whichever thread uses it.
func DialInside(ctx context.Context, namespace string, dialer net.Dialer, network, address string) (connection net.Conn, err error) {
	inside := Inside(namespace, func() error {
		connection, err = dialer.DialContext(ctx, network, address)
		return nil
	})
	return connection, errors.Join(inside, err)
}

func enterAndDo(namespace string, do func() error) error {
	file, err := os.Open(filepath.Join(namespaceDir, namespace))
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", namespace, err)
	}
	return do()
}

// SetSysctls writes net.* settings of one namespace, given as path below
// /proc/sys/net = value. One that this kernel lacks is an error, unless its
// path begins with "?".
func SetSysctls(namespace string, settings []string) error {
	return Inside(namespace, func() error {
		for _, setting := range settings {
			path, value, _ := strings.Cut(setting, "=")
			path, optional := strings.CutPrefix(path, "?")
			err := os.WriteFile(filepath.Join("/proc/sys/net", path), []byte(value), 0o644)
			if optional && errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("set sysctl %s=%s in %s: %w", path, value, namespace, err)
			}
		}
		return nil
	})
}

// resolverOf a namespace: `ip netns exec` has programs see it as /etc/resolv.conf.
func resolverOf(namespace string) string {
	return filepath.Join("/etc/netns", namespace, "resolv.conf")
}

// SetResolver names the DNS server of programs that start in a namespace from now on.
func SetResolver(namespace string, server netip.Addr) error {
	file := resolverOf(namespace)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(fmt.Sprintf("nameserver %s\n", server)), 0o644)
	}
	if err != nil {
		return fmt.Errorf("set the DNS server of %s: %w", namespace, err)
	}
	return nil
}

// ForgetResolver of a namespace, if it has one.
func ForgetResolver(namespace string) error {
	directory := filepath.Dir(resolverOf(namespace))
	err := os.RemoveAll(directory)
	_ = os.Remove(filepath.Dir(directory)) // only if no other namespace has one
	return err
}

// IPBatch runs lines of `ip` in one namespace, all or an error that names the
// failed one.
func IPBatch(ctx context.Context, namespace string, lines []string) error {
	return Run(ctx, strings.Join(lines, "\n")+"\n", "ip", "-n", namespace, "-batch", "-")
}

// run a short command to its end; its own words are in the error.
func Run(ctx context.Context, stdin string, name string, args ...string) error {
	_, err := Output(ctx, stdin, name, args...)
	return err
}

func Output(ctx context.Context, stdin string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// ListNamespaces that belong to the instance, whether or not this process or
// the state file knows them.
func ListNamespaces(instance string) ([]string, error) {
	entries, err := os.ReadDir(namespaceDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), NamespacePrefix(instance)) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
