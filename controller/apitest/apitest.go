// Package apitest sets up what tests of the processes' gRPC sockets have in common: a server and a
// client.
package apitest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Serve at a socket what register adds, until the test ends.
func Serve(t *testing.T, socket string, register func(*grpc.Server)) *grpc.Server {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	return server
}

// Controller is a client of the controller at a socket.
func Controller(t *testing.T, socket string) controllerv1.ControllerClient {
	t.Helper()
	return controllerv1.NewControllerClient(Connect(t, socket))
}

// Connect to a socket until the test ends.
func Connect(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
